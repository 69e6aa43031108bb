"""Events that the collector folds on arrival: a crash never replaces their handling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.collector.collector import Collector
from moothall.domain.codec import dump
from moothall.domain.event import EventType, Recorded, new_event
from moothall.domain.outcome import DeliberationStatus, Outcome
from support.story import START, FaultyBus, Remembering, full

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def try_fold(
    collector: Collector, seq: int, kind: EventType, data: dict[str, Any]
) -> bool | asyncio.Future[None]:
    event = new_event(kind, "task-a", data, ordinal=seq)
    return collector.try_fold(Recorded(seq, event, place(seq)))


def place(seq: int) -> dict[str, str]:
    return {"place": str(seq), "deliveries": "1"}


@given(
    kind=st.sampled_from(EventType),
    task_id=JSON,
    rest=st.dictionaries(st.text(max_size=8), JSON, max_size=3),
)
def test_arbitrary_events_are_left_to_the_handler(
    kind: EventType, task_id: Any, rest: dict[str, Any]
) -> None:
    collector = Collector(FaultyBus(), Remembering(), clock=lambda: START)
    assert not try_fold(collector, 1, kind, {**rest, "task_id": task_id})
    assert collector.active_count == 0


@pytest.mark.parametrize("damage", [None, [], {}, "x", 1])
async def test_a_damaged_event_of_a_known_deliberation_is_left_to_the_handler(damage: Any) -> None:
    request, *rest = full().events
    collector = Collector(FaultyBus(), Remembering(), clock=lambda: START)
    folded = try_fold(collector, 1, request.type, dict(request.data))
    assert isinstance(folded, asyncio.Future)
    assert not folded.done()
    assert collector.active_count == 1
    for seq, event in enumerate(
        (event for event in rest if event.type is EventType.SEAT_FINISHED), 2
    ):
        assert not try_fold(collector, seq, event.type, dict(event.data) | {"outcome": damage})


async def test_a_decision_at_the_deadline_is_left_to_the_handler_before_any_seat_ended() -> None:
    request, started, *_ = full().events
    collector = Collector(FaultyBus(), Remembering(), clock=lambda: START)
    try_fold(collector, 1, request.type, dict(request.data))
    assert try_fold(collector, 2, started.type, dict(started.data)) is True
    decided = dump(Outcome("task-a", DeliberationStatus.TIMEOUT)) | {"task_id": "task-a"}
    assert try_fold(collector, 3, EventType.DELIBERATION_DECIDED, decided) is False


async def test_its_own_decision_needs_no_handling_while_it_publishes_the_outcome() -> None:
    class Bus(FaultyBus):
        publishing, go_on = asyncio.Event(), asyncio.Event()

        async def put(self, name: str, document: Mapping[str, Any]) -> None:
            self.publishing.set()
            await self.go_on.wait()
            await super().put(name, document)

    bus = Bus()
    collector = Collector(bus, Remembering(), clock=lambda: START)
    events = full().events
    ready: Recorded | None = None
    for seq, event in enumerate(events, 1):
        await bus.publish(event)
        recorded = Recorded(seq, event, place(seq))
        if not collector.try_fold(recorded):
            ready = recorded
    assert ready is not None
    deciding = asyncio.create_task(collector.handle(ready))
    await bus.publishing.wait()
    decided = dump(Outcome("task-a", DeliberationStatus.COMPLETED)) | {"task_id": "task-a"}
    assert try_fold(collector, len(events) + 1, EventType.DELIBERATION_DECIDED, decided) is True
    bus.go_on.set()
    await deciding
    assert (await bus.get("task-a") or {})["status"] == DeliberationStatus.COMPLETED
    assert collector.active_count == 0


async def test_a_request_is_not_acked_before_its_deadline_is_published() -> None:
    request, started, *_ = full().events
    bus = FaultyBus()
    collector = Collector(bus, Remembering(), tick_seconds=0.01, clock=lambda: START)
    for number in range(100):  # concurrent requests are not held back: each is a message in hand
        data = dict(request.data) | {"task_id": f"task-{number}"}
        folded = collector.try_fold(
            Recorded(number + 1, new_event(request.type, f"task-{number}", data), place(number + 1))
        )
        assert isinstance(folded, asyncio.Future) == (number < 96)
    assert collector.active_count == 100
    await bus.publish(request)
    await bus.publish(started)
    run = asyncio.create_task(
        Collector(bus, Remembering(), tick_seconds=0.01, clock=lambda: START).run()
    )
    async with asyncio.timeout(20):
        while not bus.history:
            assert 1 in bus.pending
            await asyncio.sleep(0)
        await bus.settled()
    assert bus.history == [("task-a", "IN_PROGRESS")]
    assert not bus.pending
    run.cancel()
