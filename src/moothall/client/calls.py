"""The calls of a server's gRPC services."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc.aio

from moothall.api import protobuf
from moothall.api.kernel_client import translate_errors
from moothall.client.types import Story, StoryMove, StorySummary, Update
from moothall.domain.event import EventType
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import DeliberationRequest
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as council_pb
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as council_grpc
from moothall.pb.planning.v1 import planning_pb2 as story_pb
from moothall.pb.planning.v1 import planning_pb2_grpc as story_grpc


class Calls:
    """The services of one server, for one caller. Methods raise the errors of `moothall.errors`."""

    def __init__(self, channel: grpc.aio.Channel, token: str, seconds: float) -> None:
        self._councils: Any = council_grpc.OrchestratorServiceStub(channel)
        self._stories: Any = story_grpc.PlanningServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._seconds = seconds

    async def submit(self, request: DeliberationRequest) -> str:
        """Submit a task and return its id."""
        submitted = await self._call(
            self._councils.SubmitDeliberation, protobuf.request_message(request)
        )
        return str(submitted.task_id)

    async def watch(self, task_id: str, after_seq: int) -> AsyncGenerator[Update, None]:
        """Yield a task's events after a position, until it has ended. Events of a type that only a
        newer version knows are left out.
        """
        request = council_pb.WatchDeliberationRequest(task_id=task_id, after_seq=after_seq)
        stream = self._councils.WatchDeliberation(request, metadata=self._metadata)
        try:
            with translate_errors():
                async for message in stream:
                    if (update := _update(message)) is not None:
                        yield update
        finally:
            stream.cancel()

    async def status(self, task_id: str) -> DeliberationStatus:
        """Return how a task stands."""
        request = council_pb.GetDeliberationResultRequest(task_id=task_id)
        response = await self._call(self._councils.GetDeliberationResult, request)
        return protobuf.read_status(response.status)

    async def cancel(self, task_id: str, reason: str) -> DeliberationStatus:
        """Cancel a task and return its status."""
        request = council_pb.CancelDeliberationRequest(task_id=task_id, reason=reason)
        response = await self._call(self._councils.CancelDeliberation, request)
        return protobuf.read_status(response.status)

    async def steer(self, task_id: str, message: str, request_id: str) -> None:
        """Send a message to the seats of a task. The same request id is sent once."""
        request = council_pb.SteerDeliberationRequest(
            task_id=task_id, message=message, request_id=request_id
        )
        await self._call(self._councils.SteerDeliberation, request)

    async def pause(self, task_id: str) -> bool:
        """Pause a task; return whether that changed anything."""
        request = council_pb.PauseDeliberationRequest(task_id=task_id)
        return bool((await self._call(self._councils.PauseDeliberation, request)).changed)

    async def resume(self, task_id: str) -> bool:
        """Resume a task; return whether that changed anything."""
        request = council_pb.ResumeDeliberationRequest(task_id=task_id)
        return bool((await self._call(self._councils.ResumeDeliberation, request)).changed)

    async def create_story(
        self, title: str, brief: str, criteria: Sequence[str], repository: str, rigor: str
    ) -> str:
        """Put a story on the board and return its id."""
        request = story_pb.CreateStoryRequest(
            title=title, brief=brief, ac=criteria, repository=repository, rigor_level=rigor
        )
        return str((await self._call(self._stories.CreateStory, request)).story_id)

    async def list_stories(self) -> tuple[StorySummary, ...]:
        """Return the stories of the caller's tenant."""
        response = await self._call(self._stories.ListStories, story_pb.ListStoriesRequest())
        return tuple(protobuf.from_message(StorySummary, story) for story in response.stories)

    async def read_story(self, story_id: str) -> Story:
        """Return a story."""
        request = story_pb.GetStoryRequest(story_id=story_id)
        response = await self._call(self._stories.GetStory, request)
        plan = json.loads(response.plan_json) if response.plan_json else {}
        return Story(
            protobuf.from_message(StorySummary, response.story),
            tuple(response.ac),
            tuple(str(task["task_id"]) for task in plan.get("tasks", ())),
            response.check.passed,
            response.check.branch,
            response.check.commit_sha,
            response.check.why,
        )

    async def move_story(self, story_id: str, event: str, comment: str) -> StoryMove:
        """Move a story."""
        request = story_pb.TransitionRequest(story_id=story_id, event=event, comment=comment)
        return protobuf.from_message(StoryMove, await self._call(self._stories.Transition, request))

    async def comment_story(self, story_id: str, comment: str, request_id: str) -> None:
        """Comment on a story. The same request id is recorded once."""
        request = story_pb.CommentRequest(story_id=story_id, comment=comment, request_id=request_id)
        await self._call(self._stories.Comment, request)

    async def _call(self, method: Any, request: Any) -> Any:
        with translate_errors():
            return await method(request, metadata=self._metadata, timeout=self._seconds)


def _update(message: council_pb.DeliberationUpdate) -> Update | None:
    try:
        event_type = EventType(message.event.type)
    except ValueError:
        return None
    return Update(
        message.seq,
        event_type,
        protobuf.struct_data(message.event.data, "data"),
        message.status,
        message.progress_percent,
        message.current_step,
        message.current_agent,
    )
