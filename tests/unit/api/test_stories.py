"""PlanningService over gRPC: stories follow the transition table for every caller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import DeliberationRequest
from moothall.errors import NotFound
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.planning.v1 import planning_pb2_grpc as pb_grpc
from moothall.stories.board import Board
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.callers import OTHER, TOKEN, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations

STORY: Any = {
    "title": "Export invoices as CSV",
    "brief": (
        "As an accountant, I want the invoices of a month as a CSV file, so that I can book them."
    ),
    "ac": [
        "Given two invoices, when May is exported, then the file has two lines",
        "Given none, when June is exported, then the answer is 404",
    ],
}


class Calls:
    """A stub that carries a token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = pb_grpc.PlanningServiceStub(channel)

    def __getattr__(self, name: str) -> Any:
        return lambda request, token=TOKEN: getattr(self._stub, name)(
            request, metadata=[("authorization", f"Bearer {token}")], timeout=20
        )


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def calls(deliberations: MemoryDeliberations, bus: MemoryBus) -> AsyncIterator[Calls]:
    async with serving(
        deliberations, with_parts(api_dependencies(deliberations), board=Board(bus))
    ) as app:
        yield Calls(app.channel)


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


async def test_a_story_on_an_unknown_repository_is_refused(
    calls: Calls, deliberations: MemoryDeliberations
) -> None:
    deliberations.unable["ghost"] = NotFound("no repository 'ghost'")
    code, message = await refusal_of(
        calls.CreateStory(pb.CreateStoryRequest(**STORY, repository="ghost"))
    )
    assert (code, message) == (grpc.StatusCode.NOT_FOUND, "no repository 'ghost'")
    assert not (await calls.ListStories(pb.ListStoriesRequest())).stories


async def test_a_missing_title_is_reported_before_an_unknown_repository(
    calls: Calls,
) -> None:
    code, message = await refusal_of(
        calls.CreateStory(pb.CreateStoryRequest(**{**STORY, "title": " "}, repository="sample"))
    )
    assert (code, message.partition(":")[0]) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the story has no title",
    )


async def test_a_story_is_created_listed_moved_and_shown(calls: Calls, bus: MemoryBus) -> None:
    story = await calls.CreateStory(pb.CreateStoryRequest(**STORY, rigor_level="L2"))
    assert (story.state, story.dor_score) == ("backlog", 100)
    for event, state in (("refine", "draft"), ("submit", "design")):
        moved = await calls.Transition(
            pb.TransitionRequest(story_id=story.story_id, event=event, actor="local")
        )
        assert (moved.state, moved.blocked) == (state, False)
    blocked = await calls.Transition(
        pb.TransitionRequest(story_id=story.story_id, event="accept_design")
    )
    assert (blocked.state, blocked.blocked, blocked.reason) == (
        "design",
        True,
        "its tasks are not derived yet",
    )
    assert not (await calls.GetPlan(pb.GetPlanRequest(story_id=story.story_id))).json
    plan = {"story_id": story.story_id, "plan_id": "plan-1", "tasks": []}
    await bus.publish(write(EventType.PLAN_DERIVED, "plan-1", plan))
    shown_story = await calls.GetStory(pb.GetStoryRequest(story_id=story.story_id))
    assert (shown_story.story.title, list(shown_story.ac)) == (STORY["title"], STORY["ac"])
    assert json.loads(shown_story.plan_json)["plan_id"] == "plan-1"
    assert not shown_story.HasField("check")
    check = {
        "story_id": story.story_id,
        "moved": "m",
        "task_id": story.story_id,
        "status": "failed",
        "why": "tests failed",
    }
    await bus.publish(write(EventType.STORY_CHECKED, story.story_id, check))
    shown_story = await calls.GetStory(pb.GetStoryRequest(story_id=story.story_id))
    assert shown_story.check == pb.Check(task_id=story.story_id, why="tests failed")
    (listed,) = (await calls.ListStories(pb.ListStoriesRequest())).stories
    assert listed == shown_story.story
    assert not (await calls.ListStories(pb.ListStoriesRequest(), OTHER)).stories


async def test_refusals_have_distinct_status_codes(calls: Calls) -> None:
    story_id = (await calls.CreateStory(pb.CreateStoryRequest(**STORY))).story_id
    ask = pb.TransitionRequest
    code, message = await refusal_of(calls.Transition(ask(story_id=story_id, event="accept")))
    assert (code, "possible are refine" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, message = await refusal_of(
        calls.Transition(ask(story_id=story_id, event="refine", actor="boss"))
    )
    assert (code, "in another user's name" in message) == (
        grpc.StatusCode.PERMISSION_DENIED,
        True,
    )
    assert (await refusal_of(calls.Transition(ask(story_id=story_id, event="refine"), OTHER)))[
        0
    ] is grpc.StatusCode.NOT_FOUND
    other_story = await calls.CreateStory(pb.CreateStoryRequest(**STORY), OTHER)
    code, message = await refusal_of(
        calls.Transition(ask(story_id=other_story.story_id, event="refine"), OTHER)
    )
    assert (code, "one of the roles po" in message) == (grpc.StatusCode.PERMISSION_DENIED, True)
    assert (await refusal_of(calls.CreateStory(pb.CreateStoryRequest())))[
        0
    ] is grpc.StatusCode.INVALID_ARGUMENT
    assert (await refusal_of(calls.GetStory(pb.GetStoryRequest(story_id="story-none"))))[
        0
    ] is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_gets_every_transition_and_misses_none_after_reconnecting(
    calls: Calls,
) -> None:
    story_id = (await calls.CreateStory(pb.CreateStoryRequest(**STORY))).story_id
    await calls.CreateStory(pb.CreateStoryRequest(**STORY), OTHER)
    watching = calls.WatchStories(pb.WatchStoriesRequest())
    first = await anext(aiter(watching))
    assert (first.event, first.story.state) == ("moothall.story.created", "backlog")
    await calls.Transition(pb.TransitionRequest(story_id=story_id, event="refine"))
    second = await anext(aiter(watching))
    assert (second.event, second.story.state, second.seq > first.seq) == (
        "moothall.story.transitioned",
        "draft",
        True,
    )
    watching.cancel()
    second_watch = calls.WatchStories(pb.WatchStoriesRequest(after_seq=first.seq))
    assert await anext(aiter(second_watch)) == second
    second_watch.cancel()
    code, _ = await refusal_of(
        anext(aiter(calls.WatchStories(pb.WatchStoriesRequest(after_seq=-1))))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_comments_on_a_story_and_on_a_line(
    calls: Calls, bus: MemoryBus, deliberations: MemoryDeliberations
) -> None:
    story = await calls.CreateStory(pb.CreateStoryRequest(**STORY))
    for _ in range(2):
        await calls.Comment(
            pb.CommentRequest(story_id=story.story_id, comment="Soon.", request_id="one")
        )
    await deliberations.submit(DeliberationRequest("do it", "dev", task_id="task-1"), LOCAL)
    diff = "--- a/u.py\n+++ b/u.py\n@@ -0,0 +1 @@\n+new\n"
    result = Result(1, "agent-dev-001", "dev", 0.5, (), passed_gates=True, proven=True, diff=diff)
    await deliberations.decide(
        Outcome("task-1", DeliberationStatus.COMPLETED, story_id=story.story_id, results=(result,))
    )
    on = pb.DiffLine(task_id="task-1", path="u.py", line=1)
    await calls.Comment(pb.CommentRequest(story_id=story.story_id, comment="In French.", on=on))
    comments = [
        recorded.event.data
        for recorded in [item async for item in bus.replay()]
        if recorded.event.type is EventType.STORY_COMMENTED
    ]
    assert [(data["comment"], data.get("line")) for data in comments] == [
        ("Soon.", None),
        ("In French.", 1),
    ]
    on.line = 2
    code, words = await refusal_of(
        calls.Comment(pb.CommentRequest(story_id=story.story_id, comment="x", on=on))
    )
    assert (code, "no such line 2" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, _ = await refusal_of(
        calls.Comment(pb.CommentRequest(story_id=story.story_id, comment="x"), OTHER)
    )
    assert code is grpc.StatusCode.NOT_FOUND


async def test_tasks_are_shown_and_changed_before_they_begin(
    deliberations: MemoryDeliberations,
) -> None:
    bus = MemoryBus()
    async with serving(deliberations, api_dependencies(deliberations, bus)) as app:
        calls = Calls(app.channel)
        story = await calls.CreateStory(pb.CreateStoryRequest(**STORY))
        for event in ("refine", "submit"):
            await calls.Transition(pb.TransitionRequest(story_id=story.story_id, event=event))
        assert not (await calls.GetPlan(pb.GetPlanRequest(story_id=story.story_id))).tasks
        task = {
            "task_id": "task-1",
            "role": "dev",
            "description": "all",
            "constraints": {"requirements": STORY["ac"]},
        }
        plan = {
            "story_id": story.story_id,
            "plan_id": "plan-0",
            "tasks": [task],
            "publish": True,
            "by": "roles",
        }
        await bus.publish(write(EventType.PLAN_DERIVED, story.story_id, plan))
        plan_response = await calls.GetPlan(pb.GetPlanRequest(story_id=story.story_id))
        assert (
            plan_response.plan_id,
            [(task.id, list(task.criteria)) for task in plan_response.tasks],
        ) == (
            "plan-0",
            [("1", [1, 2])],
        )
        change_request = pb.ChangePlanRequest(
            story_id=story.story_id, plan_id=plan_response.plan_id, tasks=plan_response.tasks
        )
        change_request.tasks.append(pb.PlanTask(id="b", role="qa", description="test", after=["1"]))
        changed = await calls.ChangePlan(change_request)
        plan_response = await calls.GetPlan(pb.GetPlanRequest(story_id=story.story_id))
        assert (plan_response.plan_id, [list(task.after) for task in plan_response.tasks]) == (
            changed.plan_id,
            [[], ["1"]],
        )
        change_request.tasks[1].description = "too late"
        code, words = await refusal_of(calls.ChangePlan(change_request))
        assert (code, "changed by local since" in words) == (grpc.StatusCode.ABORTED, True)
        code, _ = await refusal_of(calls.ChangePlan(change_request, OTHER))
        assert code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED}
