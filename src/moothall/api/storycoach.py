"""StoryCoachService: what a story lacks, and how it could be said better."""

from __future__ import annotations

from typing import Any

from moothall.api.identity import caller
from moothall.orchestrator.story_writer import StoryWriter, WrittenStory
from moothall.pb.storycoach.v1 import storycoach_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2_grpc as pb_grpc
from moothall.stories import coach


class StoryCoach(pb_grpc.StoryCoachServiceServicer):
    """The gRPC door of the coach."""

    def __init__(self, author: StoryWriter) -> None:
        self._author = author

    async def ScoreStory(
        self, request: pb.ScoreStoryRequest, context: Any
    ) -> pb.ScoreStoryResponse:
        """Score by rules."""
        return _score(coach.score(_draft(request)))

    async def RefineStory(
        self, request: pb.RefineStoryRequest, context: Any
    ) -> pb.RefineStoryResponse:
        """Say it better; what the model does for it dies with the call."""
        return pb.RefineStoryResponse(
            **_fields(await self._author.refine(_draft(request), caller()))
        )

    async def SuggestStory(
        self, request: pb.SuggestStoryRequest, context: Any
    ) -> pb.SuggestStoryResponse:
        """Draft it; what the model does for it dies with the call."""
        return pb.SuggestStoryResponse(
            **_fields(await self._author.suggest(request.goal, caller()))
        )


def _draft(request: pb.ScoreStoryRequest | pb.RefineStoryRequest) -> coach.StoryDraft:
    return coach.StoryDraft(request.title, request.description, tuple(request.ac))


def _score(found: coach.Score) -> pb.ScoreStoryResponse:
    findings = [
        pb.Finding(code=item.code, message=item.message, weight=item.weight)
        for item in found.findings
    ]
    return pb.ScoreStoryResponse(total=found.total, findings=findings)


def _fields(written: WrittenStory) -> dict[str, Any]:
    draft = written.draft
    return {
        "title": draft.title,
        "description": draft.description,
        "ac": draft.ac,
        "by": written.by,
        "score": _score(written.score),
    }
