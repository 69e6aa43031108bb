"""Rigor scoring over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from moothall.pb.workspace.v1 import workspace_pb2 as pb
from moothall.pb.workspace.v1 import workspace_pb2_grpc as pb_grpc
from support.callers import TOKEN, serving
from support.deliberation_service import MemoryDeliberations

RECEIVED = {"metadata": [("authorization", f"Bearer {TOKEN}")], "timeout": 20}


async def test_a_report_is_scored_by_its_level(deliberations: MemoryDeliberations) -> None:
    async with serving(deliberations) as app:
        stub: Any = pb_grpc.WorkspaceServiceStub(app.channel)
        report = pb.Report(
            build=pb.Build(ok=True),
            unit=pb.Tests(ok=True, passed=3, coverage=0.75),
            static=pb.Static(ok=True),
        )
        response = await stub.ScoreWorkspace(
            pb.ScoreWorkspaceRequest(job_id="job-1", report=report), **RECEIVED
        )
        assert (response.score, response.rigor, response.gating_decision) == (100, "L1", "pass")
        response = await stub.ScoreWorkspace(
            pb.ScoreWorkspaceRequest(report=report, rigor_level="L3"), **RECEIVED
        )
        assert (response.gating_decision, response.reasons[0]) == (
            "block",
            "blocks: no evidence of e2e, which this level requires",
        )
        response = await stub.ScoreWorkspace(pb.ScoreWorkspaceRequest(), **RECEIVED)
        assert response.gating_decision == "block"


@pytest.mark.parametrize(
    ("report", "level", "message"),
    [
        ({"unit": {"ok": True, "coverage": 75.0}}, "", "unit.coverage"),
        ({"unit": {"ok": True, "coverage": float("nan")}}, "", "unit.coverage"),
        ({"e2e": {"failed": -1}}, "", "e2e.failed"),
        ({"job_id": "job-2"}, "", "the report has 'job-2'"),
        ({}, "L7", "allowed are L0, L1, L2, L3"),
    ],
)
async def test_the_invalid_field_is_named(
    deliberations: MemoryDeliberations, report: dict[str, Any], level: str, message: str
) -> None:
    async with serving(deliberations) as app:
        stub: Any = pb_grpc.WorkspaceServiceStub(app.channel)
        score_request = pb.ScoreWorkspaceRequest(
            job_id="job-1", report=pb.Report(**report), rigor_level=level
        )
        with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
            await stub.ScoreWorkspace(score_request, **RECEIVED)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
