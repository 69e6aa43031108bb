"""Several collectors on one bus: each receives some of the events, and the result is the same as
with one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Self

import pytest

from moothall.collector.collector import Collector
from moothall.domain.event import Event, EventType, new_event
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
TASKS = [f"task-{letter}" for letter in "abcdefgh"]


async def with_one(story: Story) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the decision of a single collector on a story, and the branches that it creates."""
    bus, repositories = FaultyBus(), Remembering()
    running = asyncio.create_task(Collector(bus, repositories, clock=lambda: START).run())
    await publish_story(bus, story)
    await until(lambda: bool(bus.decisions))
    running.cancel()
    await asyncio.wait([running])
    return dict(bus.decisions[0].data), repositories.branches


class Two:
    """Two collectors with separate repositories; only one at a time works under a name."""

    def __init__(self, bus: FaultyBus, now: Callable[[], datetime] = lambda: START) -> None:
        self.bus = bus
        self.repositories = (Remembering(), Remembering())
        self._locks: dict[str, asyncio.Lock] = {}
        self.collectors = [
            Collector(bus, mine, lock=self._alone, tick_seconds=0.005, clock=now)
            for mine in self.repositories
        ]
        self.running: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        async with self._locks.setdefault(name, asyncio.Lock()):
            yield

    async def __aenter__(self) -> Self:
        self.running = [asyncio.create_task(collector.run()) for collector in self.collectors]
        return self

    async def kill(self, number: int) -> None:
        self.running[number].cancel()
        await asyncio.wait([self.running[number]])

    async def __aexit__(self, *_: object) -> None:
        for number in range(2):
            await self.kill(number)

    @property
    def deliveries(self) -> list[int]:
        return [mine.deliveries for mine in self.repositories]


def mixed(stories: Iterable[Story], seed: int) -> list[Event]:
    """Return the events of concurrent deliberations."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    remaining = [list(story.events) for story in stories]
    merged = []
    while remaining := [events for events in remaining if events]:
        merged.append(chance.choice(remaining).pop(0))
    return merged


def are_shown_in_order(bus: FaultyBus) -> bool:
    order = ["PENDING", "IN_PROGRESS", "COMPLETED", "TIMEOUT"]
    shown = {
        task: [order.index(status) for key, status in bus.history if key == task]
        for task, _ in bus.history
    }
    return all(progress == sorted(progress) for progress in shown.values())


@pytest.mark.parametrize("seed", range(6))
async def test_two_collectors_share_the_work_and_decide_and_deliver_once(
    seed: int,
) -> None:
    expected, _ = await with_one(full("task-a"))
    bus = FaultyBus()
    async with Two(bus) as two:
        for event in mixed(map(full, TASKS), seed):
            await bus.publish(event)
        await until(lambda: len(bus.decisions) == len(TASKS) and not bus.pending)
        await until(lambda: all(collector.active_count == 0 for collector in two.collectors))
    assert sorted(str(event.data["task_id"]) for event in bus.decisions) == TASKS
    (first,) = [event.data for event in bus.decisions if event.data["task_id"] == "task-a"]
    assert dict(first) == expected
    assert all(two.deliveries)
    assert sum(two.deliveries) == len(TASKS)
    assert are_shown_in_order(bus)


@pytest.mark.parametrize("killed_after", range(0, len(full().events) + 1, 2))
@pytest.mark.parametrize("which", [0, 1])
async def test_a_killed_collector_is_replaced_by_the_other_with_the_same_decision(
    which: int, killed_after: int
) -> None:
    expected, branches = await with_one(full())
    bus = FaultyBus()
    async with Two(bus) as two:
        for event in full().events[:killed_after]:
            await bus.publish(event)
        for _ in range(7 * killed_after % 23):
            await asyncio.sleep(0)
        await two.kill(which)
        await publish_story(bus, Story(events=full().events[killed_after:]))
        await until(
            lambda: bus.documents.get("task-a", {}).get("status") == "COMPLETED" and not bus.pending
        )
    assert [dict(event.data) for event in bus.decisions] == [expected]
    assert two.repositories[0].branches | two.repositories[1].branches == branches
    assert are_shown_in_order(bus)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_deadline_is_decided_by_either_collector(
    which: int,
) -> None:
    bus, now = FaultyBus(), [START]
    async with Two(bus, lambda: now[0]) as two:
        for task in TASKS:
            await publish_story(bus, Story(task).begun())
        await bus.settled()
        await until(
            lambda: all(collector.active_count == len(TASKS) for collector in two.collectors)
        )
        await two.kill(which)
        now[0] = LATE
        await until(lambda: len(bus.decisions) == len(TASKS))
    assert {str(event.data["status"]) for event in bus.decisions} == {"TIMEOUT"}


async def test_both_collectors_know_of_a_pause_and_its_end() -> None:
    bus, now = FaultyBus(), [START]

    def turn(number: int, kind: EventType) -> Event:
        data = {"task_id": "task-a", "number": number, "by": "local"}
        return new_event(kind, "task-a", data, ordinal=number, time=START.isoformat())

    async with Two(bus, lambda: now[0]) as two:
        await publish_story(bus, Story().begun())
        await until(lambda: all(collector.active_count for collector in two.collectors))
        await bus.publish(turn(0, EventType.DELIBERATION_PAUSED))
        await until(
            lambda: all(
                state.pauses.is_paused
                for collector in two.collectors
                for state in collector.states()
            )
        )
        await bus.publish(turn(1, EventType.DELIBERATION_RESUMED))
        await until(
            lambda: (
                not any(
                    state.pauses.is_paused
                    for collector in two.collectors
                    for state in collector.states()
                )
            )
        )
        now[0] = LATE
        await until(lambda: bool(bus.decisions))
    assert len(bus.decisions) == 1


async def test_a_slow_collector_adopts_the_decision_of_another() -> None:
    bus = FaultyBus()
    release = asyncio.Event()
    slow = Remembering()
    slow.gates["moothall/task-a"] = release
    await publish_story(bus, full())
    first = Collector(bus, slow, tick_seconds=0.005, clock=lambda: DEADLINE)
    second = Collector(bus, Remembering(), tick_seconds=0.005, clock=lambda: START)
    # It is stopped, so that nothing keeps the other from it.
    running = asyncio.create_task(first.handle(bus.log[-1]))
    await until(lambda: slow.deliveries > 0)
    await second.handle(bus.log[-1])
    (decision,) = bus.decisions
    release.set()
    await running
    assert bus.decisions == [decision]
    assert bus.documents["task-a"] == dict(decision.data)
    assert decision.data["winner_id"] == SEATS[0]
