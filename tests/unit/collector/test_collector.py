from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from moothall.collector.collector import Collector
from moothall.domain.codec import dump
from moothall.domain.event import EventType, new_event
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.errors import BusUnavailable, ModelUnavailable, PatchRefused
from support.story import (
    DEADLINE,
    SEATS,
    START,
    FaultyBus,
    Remembering,
    Story,
    full,
    publish_story,
    until,
)

LATE = DEADLINE + timedelta(seconds=11)


def collector(
    bus: FaultyBus, repositories: Remembering, clock: Callable[[], datetime] = lambda: START
) -> Collector:
    return Collector(bus, repositories, tick_seconds=0.005, clock=clock)


@asynccontextmanager
async def running(
    bus: FaultyBus, repositories: Remembering, clock: Callable[[], datetime] = lambda: START
) -> AsyncIterator[Collector]:
    """Run a collector, and cancel it at the end in any state."""
    running_collector = collector(bus, repositories, clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(running_collector.run())
        yield running_collector
        task.cancel()


def statuses(bus: FaultyBus, task_id: str = "task-a") -> list[str]:
    return [status for key, status in bus.history if key == task_id]


async def undisturbed_end(story: Story) -> tuple[dict[str, Any], dict[str, str]]:
    bus, repositories = FaultyBus(), Remembering()
    async with running(bus, repositories):
        await publish_story(bus, story)
        await until(lambda: bool(bus.decisions))
    return dict(bus.decisions[0].data), repositories.branches


async def test_an_ended_council_is_decided_delivered_and_shown() -> None:
    bus, repositories = FaultyBus(), Remembering()
    async with running(bus, repositories) as running_collector:
        for event in full().events:
            await bus.publish(event)
            await bus.settled()
            if event.type is EventType.DELIBERATION_STARTED:
                await until(lambda: statuses(bus)[-1] == "IN_PROGRESS")
        await until(lambda: bool(bus.decisions))
        await bus.settled()
        assert running_collector.active_count == 0
    data = bus.decisions[0].data
    assert (data["status"], data["winner_id"], data["final_state"]) == (
        "COMPLETED",
        SEATS[0],
        "committed",
    )
    assert data["branch"] == "moothall/task-a"
    assert data["commit_sha"] == repositories.branches["moothall/task-a"]
    assert repositories.messages == {
        (
            "Add hello_world() function to src/utils.py\n\nDeliberation: task-a\nWinner: "
            f"{SEATS[0]} "
            "(proven)\n"
        )
    }
    assert [(ref.id, ref.url, ref.ref) for ref in repositories.refs] == [("sample", "", "b" * 40)]
    assert statuses(bus) == ["PENDING", "IN_PROGRESS", "COMPLETED"]
    assert bus.documents["task-a"] == data
    assert bus.dead == []


@pytest.mark.parametrize("killed_after", range(len(full().events) + 1))
async def test_a_collector_killed_after_any_event_decides_the_same_once(
    killed_after: int,
) -> None:
    expected, branches = await undisturbed_end(full())
    bus, repositories = FaultyBus(), Remembering()
    async with running(bus, repositories):
        for event in full().events[:killed_after]:
            await bus.publish(event)
        await bus.settled()
    async with running(bus, repositories):
        await publish_story(bus, Story(events=full().events[killed_after:]))
        await until(lambda: bus.documents.get("task-a", {}).get("status") == "COMPLETED")
        await bus.settled()
    assert [dict(event.data) for event in bus.decisions] == [expected]
    assert repositories.branches == branches


async def test_a_collector_killed_at_any_step_decides_the_same_once() -> None:
    expected, branches = await undisturbed_end(full())
    for steps in range(0, 400, 7):
        bus, repositories = FaultyBus(), Remembering()
        await publish_story(bus, full())
        async with running(bus, repositories):
            for _ in range(steps):
                await asyncio.sleep(0)
        async with running(bus, repositories):
            await until(lambda: bus.documents.get("task-a", {}).get("status") == "COMPLETED")  # noqa: B023 - awaited within the turn
            await bus.settled()
        assert [dict(event.data) for event in bus.decisions] == [expected]
        assert repositories.branches == branches
        assert bus.documents["task-a"] == expected


async def test_repeated_and_reordered_deliveries_change_nothing() -> None:
    expected, _ = await undisturbed_end(full())
    for seed in range(20):
        bus, repositories = FaultyBus(), Remembering()
        chance = random.Random(seed)  # noqa: S311 - no secret
        bus.shuffled = lambda seqs: chance.sample(seqs, len(seqs))  # noqa: B023 - used within the turn
        bus.repeat = 2
        await publish_story(bus, full())
        async with running(bus, repositories):
            await until(lambda: not bus.pending)  # noqa: B023 - awaited within the turn
        assert [dict(event.data) for event in bus.decisions] == [expected]
        assert statuses(bus)[-1] == "COMPLETED"


@pytest.mark.parametrize("act", ["publish", "replay", "put"])
async def test_a_temporary_bus_failure_is_retried(act: str) -> None:
    expected, _ = await undisturbed_end(full())
    bus, repositories = FaultyBus(), Remembering()
    await publish_story(bus, full())
    bus.failures[act] = 5
    async with running(bus, repositories):
        await until(
            lambda: bus.documents.get("task-a", {}).get("status") == "COMPLETED" and not bus.pending
        )
    assert [dict(event.data) for event in bus.decisions] == [expected]


async def test_an_end_that_could_not_be_shown_is_shown_without_another_event() -> None:
    bus = FaultyBus()
    await publish_story(bus, full())
    late_collector = collector(bus, Remembering())
    bus.failures["put"] = 2
    with pytest.raises(BusUnavailable):
        await late_collector.handle(bus.log[0])  # reads the rest, and decides
    with pytest.raises(BusUnavailable):
        await late_collector.handle(bus.log[-1])
    assert bus.history == []
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(late_collector._watch_deadlines(group))
        await until(lambda: late_collector.active_count == 0)
        watching.cancel()
    assert statuses(bus)[-1] == "COMPLETED"
    assert len(bus.decisions) == 1


async def test_the_deadline_decides_without_another_event() -> None:
    bus, now = FaultyBus(), [START]
    async with running(bus, Remembering(), lambda: now[0]):
        await publish_story(bus, Story().begun().proposed(SEATS[0], "good"))
        await bus.settled()
        assert bus.decisions == []
        now[0] = LATE
        await until(lambda: bool(bus.decisions))
    assert bus.decisions[0].data["status"] == "TIMEOUT"
    assert bus.decisions[0].data["duration_ms"] == 600_000


async def test_a_restart_finds_deliberations_that_only_wait_for_their_deadline() -> None:
    bus = FaultyBus()
    async with running(bus, Remembering()):
        await publish_story(bus, Story().begun())
        await bus.settled()
    assert not bus.pending
    async with running(bus, Remembering(), lambda: LATE):
        await until(lambda: statuses(bus)[-1] == "TIMEOUT")
    assert len(bus.decisions) == 1


async def test_seats_that_end_late_do_not_change_the_decision() -> None:
    bus = FaultyBus()
    story = Story().begun()
    for seat in SEATS:
        story.finished(seat, at=700)
    await publish_story(bus, story)
    async with running(bus, Remembering(), lambda: LATE):
        await until(lambda: bool(bus.decisions))
    assert {seat["status"] for seat in bus.decisions[0].data["seats"]} == {"late"}


async def test_a_cancel_before_the_end_wins_and_after_it_loses() -> None:
    events = full().events
    early_bus, late_bus = FaultyBus(), FaultyBus()
    early = Story(events=[*events[:-1], *Story().cancelled(at=50).events, events[-1]])
    late = Story(events=[*events, *Story().cancelled(at=50).events])
    await publish_story(early_bus, early)
    await publish_story(late_bus, late)
    async with running(early_bus, Remembering()), running(late_bus, Remembering()):
        await until(lambda: bool(early_bus.decisions) and bool(late_bus.decisions))
    assert early_bus.decisions[0].data["status"] == "CANCELLED"
    assert late_bus.decisions[0].data["status"] == "COMPLETED"


@pytest.mark.parametrize("error", [PatchRefused("it holds a hook"), ModelUnavailable("away")])
async def test_a_failed_delivery_is_reported_and_the_decision_stands(
    error: PatchRefused | ModelUnavailable,
) -> None:
    bus = FaultyBus()
    await publish_story(bus, full())
    async with running(bus, Remembering(error)):
        await until(lambda: bool(bus.decisions))
    data = bus.decisions[0].data
    assert (data["status"], data["winner_id"], data["branch"], data["final_state"]) == (
        "COMPLETED",
        SEATS[0],
        "",
        "failed",
    )
    assert error.message in data["error_message"]
    assert "moothall/task-a" in data["error_message"]


async def test_a_slow_delivery_does_not_delay_another() -> None:
    bus, repositories = FaultyBus(), Remembering()
    repositories.gates["moothall/task-a"] = asyncio.Event()
    await publish_story(bus, full("task-a"))
    await publish_story(bus, full("task-b"))
    async with running(bus, repositories):
        await until(lambda: [event.subject for event in bus.decisions] == ["task-b"])
        repositories.gates["moothall/task-a"].set()
        await until(lambda: len(bus.decisions) == 2)


async def test_only_one_delivery_runs_at_a_time() -> None:
    bus, repositories = FaultyBus(), Remembering()
    release = repositories.gates["moothall/task-a"] = asyncio.Event()
    bus.repeat = 3
    await publish_story(bus, full())
    async with running(bus, repositories):
        await until(lambda: repositories.deliveries > 0)
        await bus.publish(Story().cancelled(at=50).events[0])
        await asyncio.sleep(0.05)  # several ticks of the watcher
        release.set()
        await until(lambda: not bus.pending)
    assert repositories.deliveries == 1


async def test_a_delayed_update_never_replaces_the_end() -> None:
    bus = FaultyBus()
    release = bus.held_puts["IN_PROGRESS"] = asyncio.Event()
    async with running(bus, Remembering()):
        events = full().events
        await publish_story(bus, Story(events=events[:1]))
        await until(lambda: statuses(bus) == ["PENDING"])
        await publish_story(bus, Story(events=events[1:2]))
        await until(lambda: "IN_PROGRESS" in bus.waiting)
        await publish_story(bus, Story(events=events[2:]))
        await until(lambda: bool(bus.decisions))
        release.set()
        await until(lambda: not bus.pending)
    assert statuses(bus) == ["PENDING", "IN_PROGRESS", "COMPLETED"]


async def test_a_text_answer_is_not_delivered() -> None:
    bus, repositories = FaultyBus(), Remembering()
    await publish_story(bus, full(text=True))
    async with running(bus, repositories):
        await until(lambda: bool(bus.decisions))
    assert (bus.decisions[0].data["final_state"], bus.decisions[0].data["branch"]) == (
        "answered",
        "",
    )
    assert repositories.refs == []


async def test_a_malformed_event_is_dead_lettered_and_the_rest_is_decided() -> None:
    expected, _ = await undisturbed_end(full())
    bus = FaultyBus()
    malformed = [
        new_event(
            EventType.SEAT_PROPOSED, "task-a", {"task_id": "task-a", "proposal": {"seat": 1}}
        ),
        new_event(EventType.SEAT_FINISHED, "x", {"task_id": "not/an id"}),
        new_event(EventType.SEAT_FINISHED, "y", {}),
        new_event(EventType.SEAT_FINISHED, "stray", {"task_id": "stray", "seat": "s"}),
    ]
    events = full().events
    await publish_story(bus, Story(events=[*events[:4], *malformed, *events[4:]]))
    async with running(bus, Remembering()) as running_collector:
        await until(lambda: bool(bus.decisions) and not bus.pending)
        assert running_collector.active_count == 0
    assert {event_id for event_id, _ in bus.dead} == {event.id for event in malformed}
    assert [dict(event.data) for event in bus.decisions] == [expected]


async def test_an_earlier_decision_is_shown_and_not_repeated() -> None:
    expected, _ = await undisturbed_end(full())
    bus, repositories = FaultyBus(), Remembering()
    await publish_story(bus, full())
    await bus.publish(
        new_event(
            EventType.DELIBERATION_DECIDED,
            "task-a",
            {**expected, "winner_id": "kept"},
            time=START.isoformat(),
        )
    )
    bus.documents["other"] = {"status": "IN_PROGRESS"}
    bus.documents["task-a"] = dump_pending()
    async with running(bus, repositories):
        await until(lambda: not bus.pending and bus.documents["task-a"]["status"] == "COMPLETED")
    assert len(bus.decisions) == 1
    assert bus.documents["task-a"]["winner_id"] == "kept"
    assert repositories.branches == {}


def dump_pending() -> dict[str, Any]:
    return dump(Outcome("task-a", DeliberationStatus.PENDING))
