"""Writing events: the one place where a fact gets its time, the trace that it belongs to and what
led to it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Unpack

from moothall.domain.causation import cause_of
from moothall.domain.event import Data, Event, EventType, Origin, new_event
from moothall.domain.task import Deliberation
from moothall.telemetry.spans import traceparent


def write(kind: EventType, subject: str, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return an event of now, where no other time is given, in the trace of the caller."""
    origin["traceparent"] = traceparent()
    origin["time"] = origin.get("time") or datetime.now(UTC).isoformat(timespec="milliseconds")
    return new_event(kind, subject, data, **origin)


def write_of(d: Deliberation, kind: EventType, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return a fact of a deliberation: as `write`, with its ids, its tenant and what led to it."""
    origin["causationid"] = cause_of(kind, d.task_id, str(origin.get("ordinal", 0)), data)
    origin["correlationid"] = d.story_id or d.task_id
    origin["tenant"] = d.tenant
    return write(kind, d.task_id, {"task_id": d.task_id, **data}, **origin)
