"""What the collector takes in as it comes: its handling is never replaced by a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.collector import Collector
from moothall.config import Limits
from moothall.domain.event import EventType, Recorded, new_event
from support.story import START, FaultyBus, Remembering, full

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def glanced(collector: Collector, seq: int, kind: EventType, data: dict[str, Any]) -> bool | asyncio.Future[None]:
    event = new_event(kind, "task-a", data, ordinal=seq)
    return collector.glance(Recorded(seq, event, {"place": str(seq), "deliveries": "1"}))


@given(kind=st.sampled_from(EventType), task_id=JSON, rest=st.dictionaries(st.text(max_size=8), JSON, max_size=3))
def test_whatever_comes_is_left_to_its_handling(kind: EventType, task_id: Any, rest: dict[str, Any]) -> None:
    collector = Collector(FaultyBus(), Remembering(), Limits(), clock=lambda: START)
    assert not glanced(collector, 1, kind, {**rest, "task_id": task_id})
    assert collector.under_way == 0


@pytest.mark.parametrize("damage", [None, [], {}, "x", 1])
async def test_a_damaged_event_of_a_known_deliberation_is_left_to_its_handling(damage: Any) -> None:
    requested, *rest = full().events
    collector = Collector(FaultyBus(), Remembering(), Limits(), clock=lambda: START)
    asked = glanced(collector, 1, requested.type, dict(requested.data))
    assert isinstance(asked, asyncio.Future)
    assert not asked.done()
    assert collector.under_way == 1
    for seq, event in enumerate((event for event in rest if event.type is EventType.SEAT_FINISHED), 2):
        assert not glanced(collector, seq, event.type, dict(event.data) | {"outcome": damage})
