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


class TwoCollectors:
    """Two collectors with separate repositories; only one at a time works under a name."""

    def __init__(self, bus: FaultyBus, clock: Callable[[], datetime] = lambda: START) -> None:
        self.bus = bus
        self.repositories = (Remembering(), Remembering())
        self._locks: dict[str, asyncio.Lock] = {}
        self.collectors = [
            Collector(bus, repositories, lock=self._hold_lock, tick_seconds=0.005, clock=clock)
            for repositories in self.repositories
        ]
        self.running: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def _hold_lock(self, name: str) -> AsyncIterator[None]:
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
        return [repositories.deliveries for repositories in self.repositories]


def interleave(stories: Iterable[Story], seed: int) -> list[Event]:
    """Return the events of concurrent deliberations."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    remaining = [list(story.events) for story in stories]
    merged = []
    while remaining := [events for events in remaining if events]:
        merged.append(chance.choice(remaining).pop(0))
    return merged


def are_shown_in_order(bus: FaultyBus) -> bool:
    order = ["PENDING", "IN_PROGRESS", "COMPLETED", "TIMEOUT"]
    positions = {
        task: [order.index(status) for key, status in bus.history if key == task]
        for task, _ in bus.history
    }
    return all(progress == sorted(progress) for progress in positions.values())


@pytest.mark.parametrize("seed", range(6))
async def test_two_collectors_share_the_work_and_decide_and_deliver_once(
    seed: int,
) -> None:
    expected, _ = await with_one(full("task-a"))
    bus = FaultyBus()
    async with TwoCollectors(bus) as pair:
        for event in interleave(map(full, TASKS), seed):
            await bus.publish(event)
        await until(lambda: len(bus.decisions) == len(TASKS) and not bus.pending)
        await until(lambda: all(collector.active_count == 0 for collector in pair.collectors))
    assert sorted(str(event.data["task_id"]) for event in bus.decisions) == TASKS
    (first,) = [event.data for event in bus.decisions if event.data["task_id"] == "task-a"]
    assert dict(first) == expected
    assert all(pair.deliveries)
    assert sum(pair.deliveries) == len(TASKS)
    assert are_shown_in_order(bus)


@pytest.mark.parametrize("killed_after", range(0, len(full().events) + 1, 2))
@pytest.mark.parametrize("index", [0, 1])
async def test_a_killed_collector_is_replaced_by_the_other_with_the_same_decision(
    index: int, killed_after: int
) -> None:
    expected, branches = await with_one(full())
    bus = FaultyBus()
    async with TwoCollectors(bus) as pair:
        for event in full().events[:killed_after]:
            await bus.publish(event)
        for _ in range(7 * killed_after % 23):
            await asyncio.sleep(0)
        await pair.kill(index)
        await publish_story(bus, Story(events=full().events[killed_after:]))
        await until(
            lambda: bus.documents.get("task-a", {}).get("status") == "COMPLETED" and not bus.pending
        )
    assert [dict(event.data) for event in bus.decisions] == [expected]
    assert pair.repositories[0].branches | pair.repositories[1].branches == branches
    assert are_shown_in_order(bus)


@pytest.mark.parametrize("index", [0, 1])
async def test_a_deadline_is_decided_by_either_collector(
    index: int,
) -> None:
    bus, now = FaultyBus(), [START]
    async with TwoCollectors(bus, lambda: now[0]) as pair:
        for task in TASKS:
            await publish_story(bus, Story(task).begun())
        await bus.settled()
        await until(
            lambda: all(collector.active_count == len(TASKS) for collector in pair.collectors)
        )
        await pair.kill(index)
        now[0] = LATE
        await until(lambda: len(bus.decisions) == len(TASKS))
    assert {str(event.data["status"]) for event in bus.decisions} == {"TIMEOUT"}


async def test_both_collectors_know_of_a_pause_and_its_end() -> None:
    bus, now = FaultyBus(), [START]

    def turn(number: int, kind: EventType) -> Event:
        data = {"task_id": "task-a", "number": number, "by": "local"}
        return new_event(kind, "task-a", data, ordinal=number, time=START.isoformat())

    async with TwoCollectors(bus, lambda: now[0]) as pair:
        await publish_story(bus, Story().begun())
        await until(lambda: all(collector.active_count for collector in pair.collectors))
        await bus.publish(turn(0, EventType.DELIBERATION_PAUSED))
        await until(
            lambda: all(
                state.pauses.is_paused
                for collector in pair.collectors
                for state in collector.states()
            )
        )
        await bus.publish(turn(1, EventType.DELIBERATION_RESUMED))
        await until(
            lambda: (
                not any(
                    state.pauses.is_paused
                    for collector in pair.collectors
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
    # It is stopped, so the other one can take over.
    running = asyncio.create_task(first.handle(bus.log[-1]))
    await until(lambda: slow.deliveries > 0)
    await second.handle(bus.log[-1])
    (decision,) = bus.decisions
    release.set()
    await running
    assert bus.decisions == [decision]
    assert bus.documents["task-a"] == dict(decision.data)
    assert decision.data["winner_id"] == SEATS[0]
