from __future__ import annotations

from moothall.domain.event import EventType, call_event_id, cause_of, new_event, request_event_id
from moothall.domain.ids import TaskKey


def test_a_cause_is_the_id_of_the_causing_event() -> None:
    request = new_event(EventType.DELIBERATION_REQUESTED, "t", {})
    began = new_event(EventType.DELIBERATION_STARTED, "t", {}, ordinal="")
    seat = new_event(EventType.SEAT_STARTED, "t", {}, ordinal="agent-dev-001")
    called = new_event(EventType.MODEL_CALLED, "t", {}, ordinal="t/agent-dev-001/propose/0.1")
    revised = new_event(EventType.SEAT_REVISED, "t", {}, ordinal="agent-dev-001.r1/0123")
    assert request_event_id(TaskKey("t")) == request.id
    assert call_event_id(TaskKey("t"), "t/agent-dev-001/propose/0.1") == called.id
    assert cause_of(EventType.DELIBERATION_STARTED, TaskKey("t"), "", {}) == request.id
    assert cause_of(EventType.SEAT_STARTED, TaskKey("t"), "agent-dev-001", {}) == began.id
    assert cause_of(EventType.MODEL_CALLED, TaskKey("t"), "…", {"seat": "-"}) == began.id
    assert cause_of(EventType.MODEL_CALLED, TaskKey("t"), "…", {"seat": "agent-dev-001"}) == seat.id
    assert cause_of(EventType.SEAT_TURN, TaskKey("t"), "agent-dev-001/propose/0.1", {}) == called.id
    assert (
        cause_of(
            EventType.CHECK_FINISHED,
            TaskKey("t"),
            "…",
            {"candidate": "agent-dev-001.r1", "fingerprint": "0123"},
        )
        == revised.id
    )
    assert cause_of(EventType.STORY_CREATED, TaskKey("t"), "", {}) == ""


def test_cause_and_trace_do_not_change_the_id_of_an_event() -> None:
    plain = new_event(EventType.SEAT_STARTED, "t", {}, ordinal="a")
    placed = new_event(
        EventType.SEAT_STARTED, "t", {}, ordinal="a", causationid="x", traceparent="00-1-2-01"
    )
    assert placed.id == plain.id
    assert (placed.causationid, placed.traceparent) == ("x", "00-1-2-01")
