"""Creation of events, with their time, trace and cause."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Unpack

from moothall.domain.causation import cause_of
from moothall.domain.event import Data, Event, EventType, Origin, new_event
from moothall.domain.task import Deliberation
from moothall.telemetry.spans import traceparent


def write(kind: EventType, subject: str, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return an event in the current trace. Its time is now unless `origin` has one."""
    origin["traceparent"] = traceparent()
    origin["time"] = origin.get("time") or datetime.now(UTC).isoformat(timespec="milliseconds")
    return new_event(kind, subject, data, **origin)


def write_of(d: Deliberation, kind: EventType, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return an event of a deliberation, with its ids, tenant and cause."""
    origin["causationid"] = cause_of(kind, d.task_id, str(origin.get("ordinal", 0)), data)
    origin["correlationid"] = d.story_id or d.task_id
    origin["tenant"] = d.tenant
    return write(kind, d.task_id, {"task_id": d.task_id, **data}, **origin)
