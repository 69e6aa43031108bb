"""Immutable events with deterministic ids. The causes of events, as far as they follow from an
event itself. The topics of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from moothall.domain.ids import TaskKey, digest

# Immutable events with deterministic ids.


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

    def comes_after(self, last_position: int) -> bool:
        """Return whether the event is new to a reader that has seen everything up to
        `last_position`, a seq or a position.
        """
        return (
            self.position > last_position
            if last_position >= _FIRST_POSITION
            else (self.message or self.seq) > last_position
        )


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


@lru_cache(maxsize=4096)  # ids are needed again as causes of later events
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


# The causes of events, as far as they follow from an event itself. They are deterministic: a
# repeated event has the same cause.


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


# The topics of messages. Only the bus's registry maps them to subjects.


class Channel(StrEnum):
    """A kind of messages; each message is about one thing, named by an id."""

    STORIES = "stories"
    """Events of stories."""
    RESULTS = "results"
    """Events of deliberations except their end; by task."""
    RESPONSES = "responses"
    """The end of a deliberation, or its cancellation; by task."""
    WORDS = "words"
    """Steering messages to a running deliberation, and pauses; by task."""
    PROGRESS = "progress"
    """The progress of agents."""
    TOOLS = "tools"
    """Tool calls and workflows, by workspace."""
    AUDIT = "audit"
    """Records of tool calls, and alerts; by tenant."""
    COUNCILS = "councils"
    """The councils of a tenant."""
    WORK = "work"
    """Queued deliberations, by role."""
    CALLS = "calls"
    """Queued tool calls, by workspace."""
    CANCEL = "cancel"
    """Signal: stop a deliberation; by task."""
    STEER = "steer"
    """Signal: a steering message, pause or resumption of a deliberation; by task."""
    GROWING = "growing"
    """Signal: what a seat is writing; by task."""
    TAKEN = "taken"
    """Signal: a host has taken over work that was delivered before; by task."""
    LINK = "link"
    """Signal: bytes between a host and the link of a workspace's pod, by the pod and the
    receiver.
    """
    FIGURES = "figures"
    """Signal: the metrics of a process."""
    HOSTS = "hosts"
    """Requests: the state of each host; by the fleet."""
    GRAPH = "graph"
    """Requests: queries of the graph, by its writer."""
    REPOSITORIES = "repositories"
    """Requests: repository data for hosts without a shared disk; by the host that is asked."""

    def of(self, about: str) -> Topic:
        """Return the topic of one thing."""
        return Topic(self, about)

    @property
    def all(self) -> Topic:
        """The topic of everything in this channel."""
        return Topic(self, None)


@dataclass(frozen=True, slots=True)
class Topic:
    """A thing of a channel by its id; None for all of them."""

    channel: Channel
    about: str | None

    def covers(self, other: Topic) -> bool:
        """Return whether every message of `other` is also one of this topic."""
        return self.channel is other.channel and self.about in {None, other.about}


REPOSITORY_SERVICE = Channel.REPOSITORIES.of("house")
"""The topic of requests to the process that has the repositories."""


def deliberation_topics(task_key: TaskKey) -> tuple[Topic, ...]:
    """Return the topics with the events of one deliberation."""
    return (
        Channel.RESULTS.of(task_key),
        Channel.RESPONSES.of(task_key),
        Channel.PROGRESS.of(task_key),
        Channel.WORDS.of(task_key),
    )
