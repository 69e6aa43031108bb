"""Writing events: the one place where a fact gets its time, the trace that it belongs to and what led to it."""

from __future__ import annotations

from datetime import UTC, datetime

from moothall.domain.causes import cause_of
from moothall.domain.event import Data, Event, EventType, new_event
from moothall.domain.task import Deliberation
from moothall.telemetry.spans import traceparent


def write(
    kind: EventType,
    subject: str,
    data: Data,
    *,
    ordinal: str | int = 0,
    cause: str = "",
    causationid: str = "",
    source: str = "serve",
    correlationid: str = "",
    tenant: str = "local",
    time: str = "",
) -> Event:
    """Return an event of now, or of `time` (RFC 3339), in the trace of the caller. The rest as `new_event` says."""
    return new_event(
        kind,
        subject,
        data,
        ordinal=ordinal,
        cause=cause,
        causationid=causationid,
        source=source,
        correlationid=correlationid,
        tenant=tenant,
        traceparent=traceparent(),
        time=time or datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def write_of(
    d: Deliberation,
    kind: EventType,
    data: Data,
    *,
    ordinal: str | int = 0,
    cause: str = "",
    source: str = "serve",
    time: str = "",
) -> Event:
    """Return a fact of a deliberation: as `write`, with its ids, its tenant and what led to it."""
    return write(
        kind,
        d.task_id,
        {"task_id": d.task_id, **data},
        ordinal=ordinal,
        cause=cause,
        causationid=cause_of(kind, d.task_id, str(ordinal), data),
        source=source,
        correlationid=d.story_id or d.task_id,
        tenant=d.tenant,
        time=time,
    )
