"""The story coach over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from moothall.orchestrator.story_writer import RULES
from moothall.pb.storycoach.v1 import storycoach_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2_grpc as pb_grpc
from support.callers import TOKEN, serving
from support.deliberation_service import MemoryDeliberations

RECEIVED = {"metadata": [("authorization", f"Bearer {TOKEN}")], "timeout": 20}


async def test_a_story_is_scored_refined_and_suggested_over_grpc(
    deliberations: MemoryDeliberations,
) -> None:
    async with serving(deliberations) as app:
        stub: Any = pb_grpc.StoryCoachServiceStub(app.channel)
        scored = await stub.ScoreStory(
            pb.ScoreStoryRequest(title="Export", ac=["It is fast"]), **RECEIVED
        )
        assert {item.code for item in scored.findings} >= {"TITLE", "DESCRIPTION", "TESTABLE"}
        assert scored.total == 100 - sum(item.weight for item in scored.findings)
        refined = await stub.RefineStory(
            pb.RefineStoryRequest(title="Export", ac=["404 when there is none"]), **RECEIVED
        )
        assert refined.by == RULES
        assert refined.ac == ["Given nothing else is changed, when there is none, then 404"]
        suggested = await stub.SuggestStory(
            pb.SuggestStoryRequest(goal="Export invoices"), **RECEIVED
        )
        assert (suggested.title, suggested.by) == ("Export invoices", RULES)
        with pytest.raises(grpc.aio.AioRpcError, match="the goal is empty"):
            await stub.SuggestStory(pb.SuggestStoryRequest(), **RECEIVED)
        with pytest.raises(grpc.aio.AioRpcError, match="a valid token is needed"):
            await stub.ScoreStory(pb.ScoreStoryRequest())
