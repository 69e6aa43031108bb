from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from moothall.config import LimitSettings
from moothall.domain.event import Channel, Event, EventType, new_event
from moothall.domain.ids import LOCAL, Principal, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import PlanningEvent, Strategy
from moothall.domain.task import RepositoryRef
from moothall.errors import (
    AlreadyExists,
    InvalidRequest,
    NoCouncil,
    NotFound,
    Permanent,
    Refused,
    RepositoryError,
)
from moothall.events import raw_store
from moothall.events.codec import encode
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.stories.executor import StoryExecutor
from moothall.stories.planner import Planner
from moothall.testing.bus import MemoryBus
from support.deliberation_service import Lands, MemoryDeliberations

OTHER = Principal("eve", "elsewhere")
MOVED = PlanningEvent(
    "story.transitioned",
    "story-1",
    "plan-1",
    "DRAFT",
    "PLANNING",
    1_700_000_000_000,
    {
        "title": "Greet",
        "brief": "Say hello",
        "ac": "- says hello\n- is polite",
        "roles": "ARCHITECT, DEV, QA",
        "repository": "repo",
    },
)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def deliberations() -> MemoryDeliberations:
    return MemoryDeliberations()


@pytest.fixture
def planner(bus: MemoryBus) -> Planner:
    return Planner(bus, LimitSettings())


@asynccontextmanager
async def running(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> AsyncIterator[StoryExecutor]:
    async with asyncio.TaskGroup() as group:
        work = StoryExecutor(bus, deliberations, LimitSettings(), planner, Lands())
        task = group.create_task(work.run())
        try:
            yield work
        finally:
            task.cancel()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def events(bus: MemoryBus, kind: EventType) -> list[Event]:
    return [
        item.event async for item in bus.replay((Channel.STORIES.all,)) if item.event.type is kind
    ]


def won_outcome(task_id: str, role: str, content: str = "", commit: str = "") -> Outcome:
    result = Result(1, f"agent-{role}-001", role, 1.0, ("proven",), True, True, content=content)
    return Outcome(
        task_id,
        DeliberationStatus.COMPLETED,
        role=role,
        winner_id=result.seat,
        results=(result,),
        commit_sha=commit,
    )


async def test_the_tasks_of_a_planned_story_run_in_order(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    async with running(bus, deliberations, planner):
        answer = await planner.process(MOVED, LOCAL)
        assert answer.processed
        design, code, tests = answer.task_ids
        await until(lambda: deliberations.task_ids() == [design])
        assert deliberations.request(design).about_text
        await deliberations.decide(won_outcome(design, "architect", "Use a function."))
        await until(lambda: deliberations.task_ids() == [design, code])
        assert deliberations.request(code).context == "architect: Use a function."
        assert deliberations.request(code).constraints.requirements == ("says hello", "is polite")
        assert (deliberations.request(code).story_id, deliberations.request(code).plan_id) == (
            "story-1",
            "plan-1",
        )
        await deliberations.decide(won_outcome(code, "dev", commit="c0ffee"))
        await until(lambda: deliberations.task_ids() == [design, code, tests])
        built_on = deliberations.request(tests).repository
        assert built_on is not None
        assert (built_on.id, built_on.ref) == ("repo", "c0ffee")
        await deliberations.decide(won_outcome(tests, "qa", commit="cafe"))
        async with asyncio.timeout(10):
            while not (ends := await events(bus, EventType.PLAN_FINISHED)):
                await asyncio.sleep(0.01)
    assert ends[0].data["status"] == "completed"
    assert ends[0].data["tasks"] == dict.fromkeys((design, code, tests), "COMPLETED")


async def test_a_repeated_event_changes_nothing(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    first = await planner.process(MOVED, LOCAL)
    assert await planner.process(MOVED, LOCAL) == first
    assert (
        await Planner(bus, LimitSettings()).process(replace(MOVED, timestamp_ms=7), LOCAL) == first
    )
    assert len(await events(bus, EventType.PLAN_DERIVED)) == 1


async def test_tasks_that_depend_on_a_task_without_a_winner_are_skipped(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    async with running(bus, deliberations, planner):
        answer = await planner.process(MOVED, LOCAL)
        await until(deliberations.task_ids)
        await deliberations.decide(
            Outcome(answer.task_ids[0], DeliberationStatus.COMPLETED, role="architect")
        )
        async with asyncio.timeout(10):
            while not (ends := await events(bus, EventType.PLAN_FINISHED)):
                await asyncio.sleep(0.01)
    assert ends[0].data["status"] == "failed"
    assert list(ends[0].data["tasks"].values()) == ["NO_WINNER", "SKIPPED", "SKIPPED"]
    assert deliberations.task_ids() == [answer.task_ids[0]]


async def test_the_error_of_a_task_is_recorded_with_the_end_of_its_plan(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    async with running(bus, deliberations, planner):
        first = (await planner.process(MOVED, LOCAL)).task_ids[0]
        await until(deliberations.task_ids)
        failed_outcome = Outcome(
            first,
            DeliberationStatus.FAILED,
            role="architect",
            error_message="the repository is gone",
        )
        await deliberations.decide(failed_outcome)
        async with asyncio.timeout(10):
            while not (ends := await events(bus, EventType.PLAN_FINISHED)):
                await asyncio.sleep(0.01)
    assert ends[0].data["why"] == {first: "the repository is gone"}


async def test_a_restarted_planner_continues_from_the_log(
    bus: MemoryBus, deliberations: MemoryDeliberations
) -> None:
    async with running(bus, deliberations, first := Planner(bus, LimitSettings())):
        design, code, tests = (await first.process(MOVED, LOCAL)).task_ids
        await until(lambda: deliberations.task_ids() == [design])
    await deliberations.decide(won_outcome(design, "architect"))  # while no planner runs
    async with running(bus, deliberations, Planner(bus, LimitSettings())):
        await until(lambda: deliberations.task_ids() == [design, code])
        await deliberations.decide(won_outcome(code, "dev"))
        await until(lambda: tests in deliberations.task_ids())
        await deliberations.decide(won_outcome(tests, "qa"))
        async with asyncio.timeout(10):
            while not await events(bus, EventType.PLAN_FINISHED):
                await asyncio.sleep(0.01)
    fresh = MemoryDeliberations()
    async with running(bus, fresh, Planner(bus, LimitSettings())) as third:
        await until(lambda: third._started)
        await asyncio.sleep(0.05)
        assert fresh.task_ids() == []


async def test_a_story_transition_from_the_bus_is_planned_too(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    story = {"story_id": "story-2", "title": "Greet", "brief": "Say hello"}
    await bus.publish(new_event(EventType.STORY_CREATED, "story-2", story))
    moved = {
        "story_id": "story-2",
        "from_state": "draft",
        "to_state": "planning",
        "event": "plan",
        "actor": "po",
    }
    await bus.publish(new_event(EventType.STORY_TRANSITIONED, "story-2", moved))
    async with running(bus, deliberations, planner):
        await until(deliberations.task_ids)
    (plan,) = await events(bus, EventType.PLAN_DERIVED)
    assert [task["role"] for task in plan.data["tasks"]] == ["architect", "dev", "qa"]
    assert deliberations.deliberation(deliberations.task_ids()[0]).principal == "po"


@pytest.mark.parametrize(
    "data",
    [
        {"story_id": "story-1", "plan_id": "p", "tasks": "none", "publish": True},
        {
            "story_id": "story-1",
            "plan_id": "p",
            "tasks": [{"task_id": "a", "role": "dev", "description": "x", "dependencies": ["a"]}],
        },
        {"story_id": "story-1"},
        {"story_id": "story-1", "to_state": "planning"},
        {"story_id": "NOT-AN-ID", "to_state": "planning"},
        {
            "story_id": "story-1",
            "to_state": "planning",
            "title": "x",
            "metadata": {"roles": "wizard"},
        },
        {
            "story_id": "story-1",
            "to_state": "planning",
            "title": "x",
            "metadata": {"max_tasks_per_role": 5},
            "plan_id": [1],
        },
    ],
)
async def test_a_malformed_event_on_the_bus_is_ignored(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner, data: dict[str, Any]
) -> None:
    kind = EventType.STORY_TRANSITIONED if "to_state" in data else EventType.PLAN_DERIVED
    async with running(bus, deliberations, planner):
        await bus.publish(new_event(kind, "story-1", data))
        answer = await planner.process(replace(MOVED, case_id="story-9"), LOCAL)
        await until(lambda: deliberations.task_ids() == [answer.task_ids[0]])


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            replace(MOVED, to_state="REVIEW"),
            "but no transition; tasks are derived when a story moves to planning",
        ),
        (replace(MOVED, metadata={}), "the story 'story-1'"),
    ],
)
async def test_other_events_are_recorded_and_reported_as_no_plan(
    bus: MemoryBus, planner: Planner, event: PlanningEvent, message: str
) -> None:
    answer = await planner.process(event, LOCAL)
    assert (answer.processed, answer.task_ids) == (False, ())
    assert message in answer.message
    recorded = [
        *await events(bus, EventType.STORY_TRANSITIONED),
        *await events(bus, EventType.STORY_CHANGED),
    ]
    (recorded_event,) = recorded
    assert recorded_event.data.get("to_state", "planning") == "planning"
    assert await events(bus, EventType.PLAN_DERIVED) == []


async def on_the_board(bus: MemoryBus, *moves: str) -> tuple[Board, str]:
    """Put a story on the board and move it; return its id."""
    board = Board(bus)
    draft = StoryDraft(
        "Export invoices as CSV",
        "As a clerk, I want a month as CSV, so that I can book it.",
        ("Given a, when b, then c",) * 2,
    )
    story_id = (await board.create(draft, LOCAL, key="1")).story.id
    for event in moves:
        await board.move(story_id, event, LOCAL)
    return board, story_id


@pytest.mark.parametrize(
    "event", [MOVED, replace(MOVED, to_state="DONE"), replace(MOVED, to_state="build")]
)
async def test_planning_events_cannot_bypass_the_board(
    bus: MemoryBus, planner: Planner, event: PlanningEvent
) -> None:
    board, story_id = await on_the_board(bus, "refine")
    answer = await planner.process(replace(event, case_id=story_id), LOCAL)
    assert (answer.processed, "this one is in draft" in answer.message) == (False, True)
    assert len(await events(bus, EventType.STORY_TRANSITIONED)) == 1
    assert (await board.card(story_id, LOCAL)).position.state == "draft"


async def test_tasks_of_a_story_on_the_board_start_once_its_design_is_accepted(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    board, story_id = await on_the_board(bus, "refine", "submit")
    async with running(bus, deliberations, planner):
        answer = await planner.process(
            replace(MOVED, case_id=story_id, metadata={"roles": "dev"}), LOCAL
        )
        assert answer.processed
        await asyncio.sleep(0.05)
        assert deliberations.task_ids() == []
        await board.move(story_id, "accept_design", LOCAL)
        await until(deliberations.task_ids)
        (task_id,) = deliberations.task_ids()
        await deliberations.decide(
            Outcome(task_id, DeliberationStatus.COMPLETED, winner_id="agent-dev-001")
        )
        async with asyncio.timeout(5):
            while (await board.card(story_id, LOCAL)).position.state != "test":
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (replace(MOVED, case_id=""), "case_id '' is not an id"),
        (replace(MOVED, plan_id="A b"), "plan_id 'A b' is not an id"),
        (replace(MOVED, event_type=" "), "event_type is empty"),
        (replace(MOVED, timestamp_ms=-1), "timestamp_ms is -1"),
        (replace(MOVED, timestamp_ms=2**62), "timestamp_ms"),
        (replace(MOVED, metadata={"brief": "x" * 30_000}), "more than 20000 characters"),
        (replace(MOVED, metadata={**MOVED.metadata} | {"roles": "wizard"}), "unknown role"),
        (
            replace(MOVED, metadata={**MOVED.metadata} | {"max_tasks_per_role": "many"}),
            "max_tasks_per_role is 'many'",
        ),
    ],
)
async def test_errors_of_an_event_are_named(
    planner: Planner, event: PlanningEvent, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await planner.process(event, LOCAL)


async def test_deriving_without_publishing_records_nothing(
    bus: MemoryBus, planner: Planner
) -> None:
    plan = await planner.derive(
        "story-1", "plan-1", ["dev", "qa"], Strategy(), LOCAL, publish=False
    )
    assert [task.role for task in plan.tasks] == ["dev", "qa"]
    assert await events(bus, EventType.PLAN_DERIVED) == []


async def test_only_a_product_owner_can_publish_a_plan_of_a_story_on_the_board(
    bus: MemoryBus, planner: Planner
) -> None:
    board, outsider = Board(bus), Principal("ann", "local", roles=frozenset({"qa", "architect"}))
    criteria = ("Given a list, when it is exported, then a CSV file is written",)
    story_id = (
        await board.create(
            StoryDraft("Export lists as CSV", "So that others read them", criteria),
            LOCAL,
            key="1",
            rigor="L0",
        )
    ).story.id
    for state, event in (("backlog", "refine"), ("draft", "submit")):
        with pytest.raises(InvalidRequest, match=f"is in {state}: its tasks are derived in design"):
            await planner.derive(story_id, "plan-9", ["dev"], Strategy(), LOCAL, publish=True)
        await board.move(story_id, event, LOCAL)
    with pytest.raises(Refused, match="one of the roles po"):
        await planner.derive(story_id, "plan-9", ["dev"], Strategy(), outsider, publish=True)
    with pytest.raises(Refused, match="one of the roles po"):
        await planner.process(replace(MOVED, case_id=story_id, plan_id="plan-9"), outsider)
    assert (await board.card(story_id, LOCAL)).plan is None
    assert (
        await planner.derive(story_id, "plan-9", ["dev"], Strategy(), outsider, publish=False)
    ).tasks, "reading needs no role"
    await planner.derive(story_id, "plan-9", ["dev"], Strategy(), LOCAL, publish=True)
    assert (await board.card(story_id, LOCAL)).plan is not None


async def test_deriving_with_publishing_is_idempotent(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    with pytest.raises(NotFound, match="is unknown: send its title"):
        await planner.derive("story-1", "plan-1", ["dev"], Strategy(), LOCAL, publish=True)
    await planner.process(replace(MOVED, to_state="draft"), LOCAL)
    plan = await planner.derive("story-1", "plan-1", ["dev"], Strategy(), LOCAL, publish=True)
    assert (
        await planner.derive("story-1", "plan-1", ["DEV"], Strategy(), LOCAL, publish=True) == plan
    )
    with pytest.raises(AlreadyExists, match="choose another plan_id"):
        await planner.derive("story-1", "plan-1", ["qa"], Strategy(), LOCAL, publish=True)
    async with running(bus, deliberations, planner):
        await until(lambda: deliberations.task_ids() == [plan.tasks[0].task_id])


async def test_a_story_is_unknown_to_another_tenant(planner: Planner) -> None:
    await planner.process(MOVED, LOCAL)
    with pytest.raises(NotFound):
        await planner.derive("story-1", "plan-1", ["dev"], Strategy(), OTHER, publish=True)
    mine = await planner.process(MOVED, LOCAL)
    hers = await planner.process(MOVED, OTHER)
    assert set(mine.task_ids).isdisjoint(hers.task_ids)


@pytest.mark.parametrize(
    ("unable", "reason"),
    [
        ("repo", NotFound("no repository 'repo'")),
        ("repo", RepositoryError("the repository '/srv/app' does not exist")),
        ("qa", NoCouncil("the qa council was deleted; create one with CreateCouncil")),
    ],
)
async def test_an_event_whose_tasks_cannot_start_is_not_processed(
    bus: MemoryBus, deliberations: MemoryDeliberations, unable: str, reason: Permanent
) -> None:
    planner = Planner(bus, LimitSettings(), deliberations.check)
    deliberations.unable[unable] = reason
    answer = await planner.process(MOVED, LOCAL)
    assert (answer.processed, answer.task_ids) == (False, ())
    assert answer.message == f"not recorded: {reason.message}"
    assert await events(bus, EventType.STORY_TRANSITIONED) == []
    with pytest.raises(NotFound, match="is unknown: send its title"):
        await planner.derive("story-1", "plan-1", ["dev", "qa"], Strategy(), LOCAL, publish=True)
    await planner.process(replace(MOVED, to_state="draft"), LOCAL)
    with pytest.raises(type(reason)):
        await planner.derive("story-1", "plan-1", ["dev", "qa"], Strategy(), LOCAL, publish=True)
    assert await events(bus, EventType.PLAN_DERIVED) == []
    del deliberations.unable[unable]
    assert (await planner.process(MOVED, LOCAL)).processed


@pytest.mark.parametrize(
    ("named", "reference"),
    [
        ("repo", RepositoryRef(id="repo", ref="main")),
        ("/srv/app", RepositoryRef(url="/srv/app", ref="main")),
        ("./app", RepositoryRef(url="./app", ref="main")),
        ("file:///srv/app", RepositoryRef(url="file:///srv/app", ref="main")),
        (
            "https://forge.example/app.git",
            RepositoryRef(url="https://forge.example/app.git", ref="main"),
        ),
        ("git@forge.example:app.git", RepositoryRef(url="git@forge.example:app.git", ref="main")),
    ],
)
async def test_a_storys_repository_is_an_id_a_path_or_a_url(
    bus: MemoryBus,
    deliberations: MemoryDeliberations,
    planner: Planner,
    named: str,
    reference: RepositoryRef,
) -> None:
    metadata = {**MOVED.metadata, "repository": named, "ref": "main", "roles": "dev"}
    async with running(bus, deliberations, planner):
        (task,) = (await planner.process(replace(MOVED, metadata=metadata), LOCAL)).task_ids
        await until(lambda: deliberations.task_ids() == [task])
    assert deliberations.request(task).repository == reference


async def test_a_derived_task_that_cannot_start_is_recorded_with_its_reason(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    async with running(bus, deliberations, planner):
        design, code, tests = (await planner.process(MOVED, LOCAL)).task_ids
        await until(lambda: deliberations.task_ids() == [design])
        assert await planner.is_waiting(code, LOCAL)
        assert not await planner.is_waiting(code, OTHER)
        assert not await planner.is_waiting(TaskId("task-other"), LOCAL)
        deliberations.failure = NoCouncil("the dev council was deleted")
        await deliberations.decide(won_outcome(design, "architect"))
        await until(lambda: len(deliberations.refused) == 2)
    assert deliberations.refused == {
        code: "the dev council was deleted",
        tests: f"not started: {code}, whose work it builds on, has no winner",
    }


async def letters(bus: MemoryBus, count: int) -> list[raw_store.DeadLetter]:
    """Wait for this many dead letters."""
    async with asyncio.timeout(10):
        while len(dead_letters := [letter async for letter in raw_store.letters(bus)]) < count:
            await asyncio.sleep(0.01)
    return dead_letters


@pytest.mark.parametrize(
    "subject", ["agile.events", "agile.events.story-2", "agile.events.acme_story-2"]
)
async def test_a_tenants_story_is_planned_from_any_of_its_subjects(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner, subject: str
) -> None:
    data = {
        "story_id": "story-2",
        "to_state": "planning",
        "title": "Greet",
        "metadata": {"roles": "dev"},
    }
    async with running(bus, deliberations, planner):
        moved = new_event(EventType.STORY_TRANSITIONED, "story-2", data, tenant="acme")
        await bus.put_raw(subject, encode(moved), message_id=moved.id)
        await until(deliberations.task_ids)
    (key,) = deliberations.task_ids()
    assert key.startswith("acme_task-")
    assert [letter async for letter in raw_store.letters(bus)] == []


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (
            EventType.STORY_TRANSITIONED,
            {"to_state": "planning"},
            "the story 'story-1'",
        ),
        (
            EventType.STORY_TRANSITIONED,
            {"to_state": "planning", "title": "x", "repository": "ghost"},
            "no repository 'ghost'",
        ),
        (
            EventType.STORY_TRANSITIONED,
            {"to_state": "planning", "title": "x", "metadata": {"roles": "wizard"}},
            "unknown role",
        ),
        (
            EventType.STORY_TRANSITIONED,
            {"to_state": "planning", "title": "x", "metadata": []},
            "metadata is not an object",
        ),
        (EventType.STORY_TRANSITIONED, {"title": "x"}, "to_state is empty"),
        (EventType.STORY_CREATED, {}, "neither a title nor a brief"),
        (EventType.STORY_CREATED, {"title": 7}, "title is not a text"),
        (EventType.STORY_CREATED, {"title": "x", "ac": "one"}, "ac is not a list of texts"),
        (EventType.STORY_CREATED, {"title": "x", "repository": 7}, "repository is neither"),
        (EventType.STORY_CREATED, {"title": "x", "rigor_level": "HIGH"}, "rigor_level is 'HIGH'"),
        (EventType.STORY_CREATED, {"title": "x", "rigor_level": ["L1"]}, "rigor_level is"),
        (EventType.STORY_CHANGED, {"rigor_level": {"L1": 1}}, "rigor_level is"),
        (EventType.STORY_CREATED, {"title": "x", "budget": {"tokens": -1}}, "from 0"),
        (EventType.STORY_CHANGED, {"story_id": "Story One"}, "cannot be part of a subject"),
        (EventType.PLAN_DERIVED, {"plan_id": "p", "tasks": "none"}, "tasks"),
    ],
)
async def test_an_ineffective_story_event_is_a_dead_letter(
    bus: MemoryBus,
    deliberations: MemoryDeliberations,
    kind: EventType,
    data: dict[str, Any],
    reason: str,
) -> None:
    deliberations.unable["ghost"] = NotFound("no repository 'ghost'")
    async with running(bus, deliberations, Planner(bus, LimitSettings(), deliberations.check)):
        event = new_event(kind, "story-1", {"story_id": "story-1", **data})
        await bus.put_raw("agile.events", encode(event), message_id=event.id)
        (letter,) = await letters(bus, 1)
    assert reason in letter.reason
    assert deliberations.task_ids() == []


async def test_a_transition_that_the_life_cycle_forbids_is_a_dead_letter(
    bus: MemoryBus, deliberations: MemoryDeliberations, planner: Planner
) -> None:
    board, story_id = await on_the_board(bus, "refine")
    transition = {
        "story_id": story_id,
        "from_state": "draft",
        "to_state": "done",
        "event": "finish",
        "actor": "eve",
        "roles": ["po"],
    }
    planned = {"story_id": story_id, "to_state": "planning", "event": "plan"}
    async with running(bus, deliberations, planner):
        await bus.publish(new_event(EventType.STORY_TRANSITIONED, story_id, transition))
        await bus.publish(new_event(EventType.STORY_TRANSITIONED, story_id, planned, ordinal=1))
        first, second = await letters(bus, 2)
        await board.move(story_id, "submit", LOCAL)
    assert "'finish' is not possible for a story in draft" in first.reason
    assert "its tasks are derived in design" in second.reason
    assert (await board.card(story_id, LOCAL)).position.state == "design"
