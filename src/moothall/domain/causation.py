"""The causes of events, as far as they follow from an event itself. They are deterministic: a
repeated event has the same cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moothall.domain.event import EventType, event_id
from moothall.domain.ids import TaskKey


def request_event_id(task_key: TaskKey) -> str:
    """Return the id of the event that requested a deliberation."""
    return event_id(EventType.DELIBERATION_REQUESTED, task_key, "", 0)


def call_event_id(task_key: TaskKey, call_id: str) -> str:
    """Return the id of the event that records a model call."""
    return event_id(EventType.MODEL_CALLED, task_key, "", call_id)


def steering_event_id(task_key: TaskKey, ordinal: str) -> str:
    """Return the id of the event that records a steering message."""
    return event_id(EventType.DELIBERATION_STEERED, task_key, "", ordinal)


def cause_of(
    event_type: EventType, task_key: TaskKey, ordinal: str, data: Mapping[str, Any]
) -> str:
    """Return the id of the event that caused this event of a deliberation, '' if it is unknown."""
    find_cause = _CAUSES.get(event_type)
    return find_cause(task_key, ordinal, data) if find_cause else ""


def _start_event_id(task_key: TaskKey) -> str:
    return event_id(EventType.DELIBERATION_STARTED, task_key, "", "")


def _seat_event_id(task_key: TaskKey, seat: object) -> str:
    """Return the start event of a seat; of the deliberation for calls outside of seats, such as
    listing approaches.
    """
    return (
        event_id(EventType.SEAT_STARTED, task_key, "", str(seat))
        if seat and seat != "-"
        else _start_event_id(task_key)
    )


def _candidate_event_id(task_key: TaskKey, data: Mapping[str, Any]) -> str:
    name = str(data.get("candidate", ""))
    event_type = EventType.SEAT_REVISED if "." in name else EventType.SEAT_PROPOSED
    return event_id(event_type, task_key, "", f"{name}/{data.get('fingerprint', '')}")


_CAUSES: Mapping[EventType, Callable[[TaskKey, str, Mapping[str, Any]], str]] = {
    EventType.DELIBERATION_STARTED: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.AGENT_PROGRESS: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.DELIBERATION_CANCELLED: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.DELIBERATION_STEERED: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.DELIBERATION_PAUSED: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.DELIBERATION_RESUMED: lambda task_key, _ordinal, _data: request_event_id(task_key),
    EventType.SEAT_STARTED: lambda task_key, _ordinal, _data: _start_event_id(task_key),
    EventType.SEAT_FINISHED: lambda task_key, _ordinal, _data: request_event_id(
        task_key
    ),  # a seat may end before it starts
    EventType.MODEL_CALLED: lambda task_key, _ordinal, data: _seat_event_id(
        task_key, data.get("seat")
    ),
    # The cause of a turn is the model call of the same step.
    EventType.SEAT_TURN: lambda task_key, ordinal, _data: call_event_id(
        task_key, f"{task_key}/{ordinal}"
    ),
    EventType.SEAT_PROPOSED: lambda task_key, _ordinal, data: _seat_event_id(
        task_key, data.get("seat")
    ),
    EventType.SEAT_REVISED: lambda task_key, _ordinal, data: _seat_event_id(
        task_key, data.get("seat")
    ),
    EventType.SEAT_FAILED: lambda task_key, _ordinal, data: _seat_event_id(
        task_key, data.get("seat")
    ),
    EventType.EVIDENCE_REPORTED: lambda task_key, _ordinal, _data: _start_event_id(task_key),
    EventType.CHECK_FINISHED: lambda task_key, _ordinal, data: _candidate_event_id(task_key, data),
    EventType.SEAT_REVIEWED: lambda task_key, _ordinal, data: _candidate_event_id(task_key, data),
}
