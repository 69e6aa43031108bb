"""The causes of events, as far as they follow from an event itself. They are deterministic: a
repeated event has the same cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moothall.domain.event import EventType, event_id


def request_event_id(task_id: str) -> str:
    """Return the id of the event that requested a deliberation."""
    return event_id(EventType.DELIBERATION_REQUESTED, task_id, "", 0)


def call_event_id(task_id: str, call_id: str) -> str:
    """Return the id of the event that records a model call."""
    return event_id(EventType.MODEL_CALLED, task_id, "", call_id)


def steering_event_id(task_id: str, ordinal: str) -> str:
    """Return the id of the event that records a steering message."""
    return event_id(EventType.DELIBERATION_STEERED, task_id, "", ordinal)


def cause_of(event_type: EventType, task_id: str, ordinal: str, data: Mapping[str, Any]) -> str:
    """Return the id of the event that caused this event of a deliberation, '' if it is unknown."""
    find_cause = _CAUSES.get(event_type)
    return find_cause(task_id, ordinal, data) if find_cause else ""


def _start_event_id(task_id: str) -> str:
    return event_id(EventType.DELIBERATION_STARTED, task_id, "", "")


def _seat_event_id(task_id: str, seat: object) -> str:
    """Return the start event of a seat; of the deliberation for calls outside of seats, such as
    listing approaches.
    """
    return (
        event_id(EventType.SEAT_STARTED, task_id, "", str(seat))
        if seat and seat != "-"
        else _start_event_id(task_id)
    )


def _candidate_event_id(task_id: str, data: Mapping[str, Any]) -> str:
    name = str(data.get("candidate", ""))
    event_type = EventType.SEAT_REVISED if "." in name else EventType.SEAT_PROPOSED
    return event_id(event_type, task_id, "", f"{name}/{data.get('fingerprint', '')}")


_CAUSES: Mapping[EventType, Callable[[str, str, Mapping[str, Any]], str]] = {
    EventType.DELIBERATION_STARTED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.AGENT_PROGRESS: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_CANCELLED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_STEERED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_PAUSED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_RESUMED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.SEAT_STARTED: lambda task_id, _ordinal, _data: _start_event_id(task_id),
    EventType.SEAT_FINISHED: lambda task_id, _ordinal, _data: request_event_id(
        task_id
    ),  # a seat may end before it starts
    EventType.MODEL_CALLED: lambda task_id, _ordinal, data: _seat_event_id(
        task_id, data.get("seat")
    ),
    # The cause of a turn is the model call of the same step.
    EventType.SEAT_TURN: lambda task_id, ordinal, _data: call_event_id(
        task_id, f"{task_id}/{ordinal}"
    ),
    EventType.SEAT_PROPOSED: lambda task_id, _ordinal, data: _seat_event_id(
        task_id, data.get("seat")
    ),
    EventType.SEAT_REVISED: lambda task_id, _ordinal, data: _seat_event_id(
        task_id, data.get("seat")
    ),
    EventType.SEAT_FAILED: lambda task_id, _ordinal, data: _seat_event_id(
        task_id, data.get("seat")
    ),
    EventType.EVIDENCE_REPORTED: lambda task_id, _ordinal, _data: _start_event_id(task_id),
    EventType.CHECK_FINISHED: lambda task_id, _ordinal, data: _candidate_event_id(task_id, data),
    EventType.SEAT_REVIEWED: lambda task_id, _ordinal, data: _candidate_event_id(task_id, data),
}
