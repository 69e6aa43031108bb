"""An immutable published fact with a deterministic id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from moothall.domain.ids import digest

Data = Mapping[str, Any]

_POSITIONS, _PLACES = 1 << 52, 1 << 10
"""The first position (above all seqs, and exact in a double), and the positions of a message."""


class EventType(StrEnum):
    """Every type of event. The bus's registry says where each travels."""

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


@dataclass(frozen=True, slots=True)
class Event:
    """A CloudEvent before it is on the wire. Make one with `new_event`.

    `subject` is the thing's id; `correlationid` the story or task; `causationid` the id of the
    event that led to this one, empty for the first; `time` is RFC 3339 in UTC, or empty.
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

    `seq` is where to go on after it: `replay(…, after_seq=seq)` leaves out nothing that came later.
    Events that travelled in one message have the seq before that message, and only the last of them
    the message's own: whoever stops between them sees the message again. `message` is the message's
    seq if that is another one, `place` the
    event's index in it.
    """

    seq: int
    event: Event
    extra: Mapping[str, str] = field(default_factory=dict)
    message: int = 0
    place: int = 0

    @property
    def position(self) -> int:
        """Where to resume after exactly this event. Positions increase within a log."""
        return (
            _POSITIONS + self.message * _PLACES + min(self.place, _PLACES - 1)
            if self.message
            else self.seq
        )

    def comes_after(self, seen: int) -> bool:
        """Whether it is new to a reader that saw everything up to `seen`, a seq or a position."""
        return self.position > seen if seen >= _POSITIONS else (self.message or self.seq) > seen


@lru_cache(maxsize=4096)  # an event's id is asked for again as the cause of those that it led to
def event_id(event_type: str, subject: str, cause: str, ordinal: str | int) -> str:
    """Return the id of the `ordinal`-th event of this type about `subject` that `cause` led to."""
    return digest(event_type, subject, cause, str(ordinal))[:32]


class Origin(TypedDict, total=False):
    """Where an event comes from; what is left out is plain: ordinal 0, source `serve`, tenant
    `local`, about itself.

    `causationid` names the event that led here where the ordinal alone tells this one from its
    siblings, `time` is RFC 3339.
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
    """Return an event whose id depends on type, subject, cause and ordinal only: a repeat has the
    same id.
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
