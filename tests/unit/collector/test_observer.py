"""A process that does not decide knows the running deliberations as well as the collector, whenever
it joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moothall.collector.collector import Collector
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.records import Observer
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import TaskKey
from moothall.testing.bus import MemoryBus
from support.story import START, Remembering, full


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("earlier_count", [0, 1, 9])
async def test_an_observer_knows_earlier_requests_and_drops_decided_ones(
    earlier_count: int,
) -> None:
    bus, events = MemoryBus(), full().events
    for event in events[:earlier_count]:
        await bus.publish(event)
    observer = Observer(bus)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(observer.run((await bus.state("EVENTS")).last_seq))
        await asyncio.sleep(0.05)
        for event in events[earlier_count:-1]:
            await bus.publish(event)
        expected: DeliberationState | None = None
        for event in events[:-1]:
            expected = fold(expected, event)
        await until(lambda: observer.states() == (expected,))
        assert [deliberation.task_id for deliberation in observer.deliberations()] == ["task-a"]
        data = {"task_id": "task-a", "number": 0}
        await bus.publish(
            new_event(
                EventType.DELIBERATION_PAUSED, "task-a", data, ordinal=0, time=START.isoformat()
            )
        )
        await until(lambda: all(state.pauses.is_paused for state in observer.states()))
        late = Observer(bus)
        await late._load_task(TaskKey("task-a"))
        assert [state.pauses.is_paused for state in late.states()] == [True]
        data = {"task_id": "task-a", "number": 1}
        await bus.publish(
            new_event(
                EventType.DELIBERATION_RESUMED, "task-a", data, ordinal=1, time=START.isoformat()
            )
        )
        deciding = group.create_task(
            Collector(bus, Remembering(), tick_seconds=0.02, clock=lambda: START).run()
        )
        await bus.publish(events[-1])
        await until(lambda: not observer.active_count)
        following.cancel()
        deciding.cancel()
