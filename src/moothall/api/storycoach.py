"""StoryCoachService: scores, refines and suggests stories."""

from __future__ import annotations

from typing import Any

from moothall.api.identity import caller
from moothall.orchestrator.story_writer import StoryWriter, WrittenStory
from moothall.pb.storycoach.v1 import storycoach_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2_grpc as pb_grpc
from moothall.stories import coach


class StoryCoach(pb_grpc.StoryCoachServiceServicer):
    """The gRPC servicer of StoryCoachService."""

    def __init__(self, author: StoryWriter) -> None:
        self._author = author

    async def ScoreStory(
        self, request: pb.ScoreStoryRequest, context: Any
    ) -> pb.ScoreStoryResponse:
        """Score a story by rules."""
        return _score(coach.score(_draft(request)))

    async def RefineStory(
        self, request: pb.RefineStoryRequest, context: Any
    ) -> pb.RefineStoryResponse:
        """Refine a story. The model call is cancelled if the call ends."""
        return pb.RefineStoryResponse(
            **_fields(await self._author.refine(_draft(request), caller()))
        )

    async def SuggestStory(
        self, request: pb.SuggestStoryRequest, context: Any
    ) -> pb.SuggestStoryResponse:
        """Draft a story. The model call is cancelled if the call ends."""
        return pb.SuggestStoryResponse(
            **_fields(await self._author.suggest(request.goal, caller()))
        )


def _draft(request: pb.ScoreStoryRequest | pb.RefineStoryRequest) -> coach.StoryDraft:
    return coach.StoryDraft(request.title, request.description, tuple(request.ac))


def _score(score: coach.Score) -> pb.ScoreStoryResponse:
    findings = [
        pb.Finding(code=item.code, message=item.message, weight=item.weight)
        for item in score.findings
    ]
    return pb.ScoreStoryResponse(total=score.total, findings=findings)


def _fields(story: WrittenStory) -> dict[str, Any]:
    draft = story.draft
    return {
        "title": draft.title,
        "description": draft.description,
        "ac": draft.ac,
        "by": story.by,
        "score": _score(story.score),
    }
