"""Which event led to which, as far as it follows from an event itself. Deterministic: a repeat has
the same cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moothall.domain.event import EventType, event_id


def request_event_id(task_id: str) -> str:
    """Return the id of the event that asked for a deliberation."""
    return event_id(EventType.DELIBERATION_REQUESTED, task_id, "", 0)


def call_event_id(task_id: str, call_id: str) -> str:
    """Return the id of the event that records a model call."""
    return event_id(EventType.MODEL_CALLED, task_id, "", call_id)


def steering_event_id(task_id: str, ordinal: str) -> str:
    """Return the id of the event that records what was said to a deliberation."""
    return event_id(EventType.DELIBERATION_STEERED, task_id, "", ordinal)


def cause_of(kind: EventType, task_id: str, ordinal: str, data: Mapping[str, Any]) -> str:
    """Return the id of the event that led to this fact of a deliberation, or nothing where that is
    not known.
    """
    known = _CAUSES.get(kind)
    return known(task_id, ordinal, data) if known else ""


def _began(task_id: str) -> str:
    return event_id(EventType.DELIBERATION_STARTED, task_id, "", "")


def _seat(task_id: str, seat: object) -> str:
    """The seat's start; what no seat did, such as listing approaches, the deliberation's."""
    return (
        event_id(EventType.SEAT_STARTED, task_id, "", str(seat))
        if seat and seat != "-"
        else _began(task_id)
    )


def _candidate(task_id: str, data: Mapping[str, Any]) -> str:
    name = str(data.get("candidate", ""))
    kind = EventType.SEAT_REVISED if "." in name else EventType.SEAT_PROPOSED
    return event_id(kind, task_id, "", f"{name}/{data.get('fingerprint', '')}")


_CAUSES: Mapping[EventType, Callable[[str, str, Mapping[str, Any]], str]] = {
    EventType.DELIBERATION_STARTED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.AGENT_PROGRESS: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_CANCELLED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_STEERED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_PAUSED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.DELIBERATION_RESUMED: lambda task_id, _ordinal, _data: request_event_id(task_id),
    EventType.SEAT_STARTED: lambda task_id, _ordinal, _data: _began(task_id),
    EventType.SEAT_FINISHED: lambda task_id, _ordinal, _data: request_event_id(
        task_id
    ),  # it may end before it began
    EventType.MODEL_CALLED: lambda task_id, _ordinal, data: _seat(task_id, data.get("seat")),
    # A turn is what the model's reply of the same step was read as.
    EventType.SEAT_TURN: lambda task_id, ordinal, _data: call_event_id(
        task_id, f"{task_id}/{ordinal}"
    ),
    EventType.SEAT_PROPOSED: lambda task_id, _ordinal, data: _seat(task_id, data.get("seat")),
    EventType.SEAT_REVISED: lambda task_id, _ordinal, data: _seat(task_id, data.get("seat")),
    EventType.SEAT_FAILED: lambda task_id, _ordinal, data: _seat(task_id, data.get("seat")),
    EventType.EVIDENCE_REPORTED: lambda task_id, _ordinal, _data: _began(task_id),
    EventType.CHECK_FINISHED: lambda task_id, _ordinal, data: _candidate(task_id, data),
    EventType.SEAT_REVIEWED: lambda task_id, _ordinal, data: _candidate(task_id, data),
}
