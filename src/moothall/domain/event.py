"""Immutable events with deterministic ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from moothall.domain.ids import digest

Data = Mapping[str, Any]

_FIRST_POSITION, _POSITIONS_PER_MESSAGE = 1 << 52, 1 << 10
"""The first position (above all seqs, and exact in a double), and the positions for a message."""


class EventType(StrEnum):
    """All types of events. The bus's registry maps them to subjects."""

    STORY_CREATED = "moothall.story.created"
    STORY_CHANGED = "moothall.story.changed"
    STORY_TRANSITIONED = "moothall.story.transitioned"
    STORY_CHECKED = "moothall.story.checked"
    STORY_DELIVERED = "moothall.story.delivered"
    STORY_COMMENTED = "moothall.story.commented"
    STORY_NOTED = "moothall.story.noted"
    PLAN_DERIVED = "moothall.plan.derived"
    DELIBERATION_REQUESTED = "moothall.deliberation.requested"
    DELIBERATION_STARTED = "moothall.deliberation.started"
    DELIBERATION_DECIDED = "moothall.deliberation.decided"
    DELIBERATION_CANCELLED = "moothall.deliberation.cancelled"
    DELIBERATION_STEERED = "moothall.deliberation.steered"
    DELIBERATION_PAUSED = "moothall.deliberation.paused"
    DELIBERATION_RESUMED = "moothall.deliberation.resumed"
    DELIBERATION_DAMAGED = "moothall.deliberation.damaged"
    SEAT_STARTED = "moothall.seat.started"
    SEAT_TURN = "moothall.seat.turn"
    SEAT_PROPOSED = "moothall.seat.proposed"
    SEAT_REVIEWED = "moothall.seat.reviewed"
    SEAT_REVISED = "moothall.seat.revised"
    SEAT_FAILED = "moothall.seat.failed"
    SEAT_FINISHED = "moothall.seat.finished"
    MODEL_CALLED = "moothall.model.called"
    TOOL_REQUESTED = "moothall.tool.requested"
    TOOL_STARTED = "moothall.tool.started"
    TOOL_FINISHED = "moothall.tool.finished"
    CHECK_FINISHED = "moothall.check.finished"
    DECISION_MADE = "moothall.decision.made"
    AGENT_PROGRESS = "moothall.agent.progress"
    AUDIT_RECORDED = "moothall.audit.recorded"
    PLAN_FINISHED = "moothall.plan.finished"
    COUNCIL_CREATED = "moothall.council.created"
    COUNCIL_DELETED = "moothall.council.deleted"
    AGENT_REGISTERED = "moothall.agent.registered"
    AGENT_UNREGISTERED = "moothall.agent.unregistered"
    GUARD_ALERTED = "moothall.guard.alerted"
    WORKFLOW_STARTED = "moothall.workflow.started"
    WORKFLOW_STEP = "moothall.workflow.step"
    WORKFLOW_FINISHED = "moothall.workflow.finished"
    EVIDENCE_REPORTED = "moothall.evidence.reported"
    STORY_MERGE_REQUESTED = "moothall.story.merge_requested"


@dataclass(frozen=True, slots=True)
class Event:
    """A CloudEvent before serialization. Create events with `new_event`.

    `subject` is the id of the object. `correlationid` is the story or task. `causationid` is the id
    of the causing event, empty for the first. `time` is RFC 3339 in UTC, or empty.
    """

    id: str
    type: EventType
    subject: str
    data: Data
    source: str = "serve"
    version: int = 1
    correlationid: str = ""
    causationid: str = ""
    traceparent: str = ""
    tenant: str = "local"
    time: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its place in the log.

    `seq` is the position to resume after: `replay(…, after_seq=seq)` misses no later event. Events
    of one message have the seq before that message, and only the last one has the message's own
    seq, so that a reader that stops in between gets the message again. `message` is the message's
    seq if it differs, `place` the event's index in it.
    """

    seq: int
    event: Event
    extra: Mapping[str, str] = field(default_factory=dict)
    message: int = 0
    place: int = 0

    @property
    def position(self) -> int:
        """The position to resume after exactly this event. Positions increase within a log."""
        return (
            _FIRST_POSITION
            + self.message * _POSITIONS_PER_MESSAGE
            + min(self.place, _POSITIONS_PER_MESSAGE - 1)
            if self.message
            else self.seq
        )

    def comes_after(self, seen: int) -> bool:
        """Return whether the event is new to a reader that has seen everything up to `seen`, a seq
        or a position.
        """
        return (
            self.position > seen if seen >= _FIRST_POSITION else (self.message or self.seq) > seen
        )


@lru_cache(maxsize=4096)  # ids are needed again as causes of later events
def parse_time(time: str) -> datetime | None:
    """Return the time of an event, in UTC if it names no zone; None if it is empty or malformed."""
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between the times of two events, 0 if one of them is unknown."""
    began, ended = parse_time(start), parse_time(end)
    return (ended - began).total_seconds() if began and ended else 0.0


def event_id(event_type: str, subject: str, cause: str, ordinal: str | int) -> str:
    """Return the id of the `ordinal`-th event of this type about `subject` that `cause` led to."""
    return digest(event_type, subject, cause, str(ordinal))[:32]


class Origin(TypedDict, total=False):
    """The origin of an event. Defaults: ordinal 0, source `serve`, tenant `local`, correlated with
    its subject.

    `causationid` is the causing event if the ordinal alone makes the event unique; `time` is RFC
    3339.
    """

    ordinal: str | int
    cause: str
    causationid: str
    source: str
    correlationid: str
    tenant: str
    traceparent: str
    time: str


def new_event(event_type: EventType, subject: str, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return an event. Its id depends only on type, subject, cause and ordinal, so that a repeated
    event has the same id.
    """
    cause = origin.get("cause", "")
    return Event(
        id=event_id(event_type, subject, cause, origin.get("ordinal", 0)),
        type=event_type,
        subject=subject,
        data=data,
        source=origin.get("source", "serve"),
        correlationid=origin.get("correlationid") or subject,
        causationid=cause or origin.get("causationid", ""),
        traceparent=origin.get("traceparent", ""),
        tenant=origin.get("tenant", "local"),
        time=origin.get("time", ""),
    )
