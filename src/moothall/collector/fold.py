"""A deliberation's events folded into facts: pure, and deaf to order and to repetition.

Every fact has a key, and of two facts with one key the earlier stays (then the smaller event id).
So the fold is a least upper bound over a set of events: any order and any number of copies of the
same events give the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from moothall.domain.budget import Usage
from moothall.domain.codec import load
from moothall.domain.event import Event, EventType
from moothall.domain.evidence import Evidence, Report, Verdict
from moothall.domain.outcome import Outcome
from moothall.domain.pauses import NEVER, Pauses
from moothall.domain.proposal import Assessment, CrossRun, Proposal, Review, SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest

T = TypeVar("T")
K = TypeVar("K")

UNDATED = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """What one event said, when, and which event. An event without a time counts as always in
    time.
    """

    time: datetime
    event_id: str
    value: T
    traceparent: str = ""
    """Only of the request: the decision belongs to its trace."""


_NONE: Mapping[Any, Any] = MappingProxyType({})


class DeliberationState(NamedTuple):
    """All facts of one deliberation that its outcome depends on.

    Keys begin with (candidate, digest of its diff), for two hosts that worked at the same time may
    have made
    different proposals of one name, and what was found of one says nothing of the other; the digest
    is empty where
    the event doesn't tell. Then follow check; author and the digest of the author's diff; reviewer
    and event id.
    The others: seat; call id; event id. Answers and prompts are not kept, so that a state stays
    small. A
    tuple, for a new one is made with each event, at a third of what a dataclass takes.
    """

    task_id: str
    requested: Fact[Deliberation] | None = None
    started: Fact[bool] | None = None
    cancelled: Fact[str] | None = None
    decided: Fact[Outcome] | None = None
    proposals: Mapping[tuple[str, str], Fact[Proposal]] = _NONE
    assessments: Mapping[tuple[str, str], Fact[Assessment]] = _NONE
    evidence: Mapping[tuple[str, str, str], Fact[Evidence]] = _NONE
    cross: Mapping[tuple[str, str, str, str], Fact[CrossRun]] = _NONE
    reviews: Mapping[tuple[str, str, str, str], Fact[Review]] = _NONE
    failures: Mapping[str, Fact[SeatOutcome]] = _NONE
    finished: Mapping[str, Fact[SeatOutcome]] = _NONE
    calls: Mapping[str, Fact[tuple[str, Usage]]] = _NONE
    pauses: Pauses = Pauses(_NONE)
    reports: Mapping[str, Fact[Report]] = _NONE

    @property
    def all_finished(self) -> bool:
        """Whether every seat of the request has ended."""
        if self.requested is None or len(self.finished) < len(self.requested.value.seats):
            return False
        return all(seat in self.finished for seat in self.requested.value.seats)

    @property
    def settled(self) -> bool:
        """Whether the events alone, without a clock, call for a decision."""
        return self.requested is not None and (self.cancelled is not None or self.all_finished)


def task_of(event: Event) -> str:
    """Return the deliberation that an event belongs to; raises `InvalidRequest` if it names
    none.
    """
    return _text(event.data, "task_id")


def fold(state: DeliberationState | None, event: Event) -> DeliberationState:
    """Return the state with what the event says. Types that no outcome depends on change nothing.

    Raises `InvalidRequest` for an event that is malformed, or of another deliberation.
    """
    task_id = task_of(event)
    if state is None:
        state = DeliberationState(task_id)
    if state.task_id != task_id:
        raise InvalidRequest(
            f"event {event.id} is of deliberation {task_id[:80]!r}, not of {state.task_id!r}"
        )
    reader = _READERS.get(event.type)
    return state if reader is None else reader(state, event, _time(event))


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"the event's data has no {name}: expected a text that is not empty")
    return value


def _text_or_empty(data: Mapping[str, Any], name: str) -> str:
    """Return a text that older events lack: then it is empty."""
    return _text(data, name) if name in data else ""


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"the event's data has no {name}: expected an object")
    return value


def _time(event: Event) -> datetime:
    if not event.time:
        return UNDATED
    try:
        time = datetime.fromisoformat(event.time)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"event {event.id} has the time {event.time[:40]!r}: expected RFC 3339"
        ) from error


def _earlier(known: Fact[T] | None, new: Fact[T]) -> Fact[T]:
    if known is None:
        return new
    return min(known, new, key=lambda fact: (fact.time, fact.event_id))


def _with(known: Mapping[K, Fact[T]], key: K, new: Fact[T]) -> Mapping[K, Fact[T]]:
    return {**known, key: _earlier(known.get(key), new)}


def _on_requested(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    deliberation = load(Deliberation, event.data)
    deadline = deliberation.deadline
    deadline = min(deadline if deadline.tzinfo else deadline.replace(tzinfo=UTC), NEVER)
    deliberation = replace(deliberation, deadline=deadline)
    return state._replace(
        requested=_earlier(state.requested, Fact(time, event.id, deliberation, event.traceparent))
    )


def _on_started(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(started=_earlier(state.started, Fact(time, event.id, value=True)))


def _on_cancelled(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(
        cancelled=_earlier(
            state.cancelled, Fact(time, event.id, str(event.data.get("reason") or ""))
        )
    )


def _on_turned(state: DeliberationState, event: Event, _: datetime) -> DeliberationState:
    return state._replace(pauses=state.pauses.with_event(event))


def _on_decided(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(
        decided=_earlier(state.decided, Fact(time, event.id, load(Outcome, event.data)))
    )


def _on_proposed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    proposal = load(Proposal, _object(event.data, "proposal"))
    key = (proposal.candidate, proposal.fingerprint)
    return state._replace(proposals=_with(state.proposals, key, Fact(time, event.id, proposal)))


def _on_checked(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    key = (_text(event.data, "candidate"), _text_or_empty(event.data, "fingerprint"))
    evidence = load(Evidence, _object(event.data, "evidence"))
    author = event.data.get("cross_author")
    if author is not None:
        run = CrossRun(
            _text(event.data, "cross_author"),
            passed=evidence.verdict is Verdict.PASSED,
            cases=evidence.shown,
            failed=evidence.red,
        )
        tests = _text_or_empty(event.data, "cross_fingerprint")
        return state._replace(
            cross=_with(state.cross, (*key, run.author, tests), Fact(time, event.id, run))
        )
    if event.data.get("assessment") is not None:
        assessment = load(Assessment, _object(event.data, "assessment"))
        state = state._replace(
            assessments=_with(state.assessments, key, Fact(time, event.id, assessment))
        )
    return state._replace(
        evidence=_with(state.evidence, (*key, evidence.check), Fact(time, event.id, evidence))
    )


def _on_reviewed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    """The envelope says who reviewed whom: a review's own words for it come from further out."""
    reviewer, candidate = _text(event.data, "seat"), _text(event.data, "candidate")
    given = {**_object(event.data, "review"), "reviewer": reviewer, "candidate": candidate}
    key = (candidate, _text_or_empty(event.data, "fingerprint"), reviewer, event.id)
    return state._replace(
        reviews=_with(state.reviews, key, Fact(time, event.id, load(Review, given)))
    )


def _on_failed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    seat, error = _text(event.data, "seat"), _object(event.data, "error")
    outcome = SeatOutcome(
        seat, SeatStatus.FAILED, _text(error, "code"), str(error.get("message") or "")
    )
    return state._replace(failures=_with(state.failures, seat, Fact(time, event.id, outcome)))


def _on_finished(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    seat = _text(event.data, "seat")
    outcome = load(SeatOutcome, {**_object(event.data, "outcome"), "seat": seat})
    return state._replace(finished=_with(state.finished, seat, Fact(time, event.id, outcome)))


def _on_reported(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    report = load(Report, _object(event.data, "report"))
    return state._replace(reports=_with(state.reports, event.id, Fact(time, event.id, report)))


def _on_called(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    usage = load(Usage, _object(event.data, "usage"))
    seat = str(event.data.get("seat") or "")
    return state._replace(
        calls=_with(state.calls, _text(event.data, "call_id"), Fact(time, event.id, (seat, usage)))
    )


_READERS: Mapping[EventType, Callable[[DeliberationState, Event, datetime], DeliberationState]] = {
    EventType.DELIBERATION_REQUESTED: _on_requested,
    EventType.DELIBERATION_STARTED: _on_started,
    EventType.SEAT_STARTED: _on_started,
    EventType.DELIBERATION_CANCELLED: _on_cancelled,
    EventType.DELIBERATION_PAUSED: _on_turned,
    EventType.DELIBERATION_RESUMED: _on_turned,
    EventType.DELIBERATION_DECIDED: _on_decided,
    EventType.SEAT_PROPOSED: _on_proposed,
    EventType.SEAT_REVISED: _on_proposed,
    EventType.CHECK_FINISHED: _on_checked,
    EventType.SEAT_REVIEWED: _on_reviewed,
    EventType.SEAT_FAILED: _on_failed,
    EventType.SEAT_FINISHED: _on_finished,
    EventType.MODEL_CALLED: _on_called,
    EventType.EVIDENCE_REPORTED: _on_reported,
}
