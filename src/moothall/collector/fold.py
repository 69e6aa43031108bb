"""Fold of a deliberation's events into facts. It is pure, and independent of order and repetition.

Every fact has a key. Of two facts with the same key, the earlier one wins (then the smaller event
id). The fold is therefore a least upper bound over a set of events: any order and any number of
copies of the same events give the same state.
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
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import Outcome
from moothall.domain.proposal import Assessment, CrossRun, Proposal, Review, SeatOutcome, SeatStatus
from moothall.domain.task import NEVER, Deliberation, Pauses
from moothall.errors import InvalidRequest

T = TypeVar("T")
K = TypeVar("K")

UNDATED = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """The content of one event, with its time and id.

    An event without a time counts as on time.
    """

    time: datetime
    event_id: str
    value: T
    traceparent: str = ""
    """Set only for the request, whose trace includes the decision."""


_NONE: Mapping[Any, Any] = MappingProxyType({})


class DeliberationState(NamedTuple):
    """The facts of one deliberation that determine its outcome.

    The keys of most mappings begin with (candidate, digest of its diff): two concurrent hosts may
    have made different proposals with the same name, and facts of one do not apply to the other.
    The digest is '' if the event lacks it. The rest of the key is the check (evidence), the author
    and the digest of the author's diff (cross), or the reviewer and the event id (reviews).

    The other mappings have as keys the seat, the call id (calls) or the event id (reports). Answers
    and prompts are not kept, so that a state stays small. The class is a tuple because each event
    creates a new one, at a third of the cost of a dataclass.
    """

    task_key: TaskKey
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
        """True if every requested seat has ended."""
        if self.requested is None or len(self.finished) < len(self.requested.value.seats):
            return False
        return all(seat in self.finished for seat in self.requested.value.seats)

    @property
    def settled(self) -> bool:
        """True if the events alone, without a clock, require a decision."""
        return self.requested is not None and (self.cancelled is not None or self.all_finished)


def task_key_of(event: Event) -> TaskKey:
    """Return the task key of an event. Raises `InvalidRequest` if it has none."""
    return TaskKey(_read_text(event.data, "task_id"))


def fold(state: DeliberationState | None, event: Event) -> DeliberationState:
    """Return the state after an event. Event types that affect no outcome change nothing.

    Raises `InvalidRequest` for a malformed event, or one of another deliberation.
    """
    task_key = task_key_of(event)
    if state is None:
        state = DeliberationState(task_key)
    if state.task_key != task_key:
        raise InvalidRequest(
            f"event {event.id} is of deliberation {task_key[:80]!r}, not of {state.task_key!r}"
        )
    handler = _HANDLERS.get(event.type)
    return state if handler is None else handler(state, event, _event_time(event))


def _read_text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"the event's data has no {name}: expected non-empty text")
    return value


def _text_or_empty(data: Mapping[str, Any], name: str) -> str:
    """Return a text; '' if it is missing, as in older events."""
    return _read_text(data, name) if name in data else ""


def _read_mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"the event's data has no {name}: expected an object")
    return value


def _event_time(event: Event) -> datetime:
    if not event.time:
        return UNDATED
    try:
        time = datetime.fromisoformat(event.time)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"event {event.id} has the time {event.time[:40]!r}: expected RFC 3339"
        ) from error


def _earlier_of(earlier_fact: Fact[T] | None, new_fact: Fact[T]) -> Fact[T]:
    if earlier_fact is None:
        return new_fact
    return min(earlier_fact, new_fact, key=lambda fact: (fact.time, fact.event_id))


def _with_fact(facts: Mapping[K, Fact[T]], key: K, new_fact: Fact[T]) -> Mapping[K, Fact[T]]:
    return {**facts, key: _earlier_of(facts.get(key), new_fact)}


def _on_requested(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    deliberation = load(Deliberation, event.data)
    deadline = deliberation.deadline
    deadline = min(deadline if deadline.tzinfo else deadline.replace(tzinfo=UTC), NEVER)
    deliberation = replace(deliberation, deadline=deadline)
    return state._replace(
        requested=_earlier_of(
            state.requested, Fact(time, event.id, deliberation, event.traceparent)
        )
    )


def _on_started(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(started=_earlier_of(state.started, Fact(time, event.id, value=True)))


def _on_cancelled(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(
        cancelled=_earlier_of(
            state.cancelled, Fact(time, event.id, str(event.data.get("reason") or ""))
        )
    )


def _on_paused_or_resumed(state: DeliberationState, event: Event, _: datetime) -> DeliberationState:
    return state._replace(pauses=state.pauses.with_event(event))


def _on_decided(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    return state._replace(
        decided=_earlier_of(state.decided, Fact(time, event.id, load(Outcome, event.data)))
    )


def _on_proposed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    proposal = load(Proposal, _read_mapping(event.data, "proposal"))
    key = (proposal.candidate, proposal.fingerprint)
    return state._replace(
        proposals=_with_fact(state.proposals, key, Fact(time, event.id, proposal))
    )


def _on_checked(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    key = (_read_text(event.data, "candidate"), _text_or_empty(event.data, "fingerprint"))
    evidence = load(Evidence, _read_mapping(event.data, "evidence"))
    author = event.data.get("cross_author")
    if author is not None:
        run = CrossRun(
            _read_text(event.data, "cross_author"),
            passed=evidence.verdict is Verdict.PASSED,
            cases=evidence.shown,
            failed=evidence.red,
        )
        tests_fingerprint = _text_or_empty(event.data, "cross_fingerprint")
        return state._replace(
            cross=_with_fact(
                state.cross, (*key, run.author, tests_fingerprint), Fact(time, event.id, run)
            )
        )
    if event.data.get("assessment") is not None:
        assessment = load(Assessment, _read_mapping(event.data, "assessment"))
        state = state._replace(
            assessments=_with_fact(state.assessments, key, Fact(time, event.id, assessment))
        )
    return state._replace(
        evidence=_with_fact(state.evidence, (*key, evidence.check), Fact(time, event.id, evidence))
    )


def _on_reviewed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    """Fold a review. The envelope's reviewer and candidate replace those in the review, which is
    untrusted.
    """
    reviewer, candidate = _read_text(event.data, "seat"), _read_text(event.data, "candidate")
    review_data = {
        **_read_mapping(event.data, "review"),
        "reviewer": reviewer,
        "candidate": candidate,
    }
    key = (candidate, _text_or_empty(event.data, "fingerprint"), reviewer, event.id)
    return state._replace(
        reviews=_with_fact(state.reviews, key, Fact(time, event.id, load(Review, review_data)))
    )


def _on_failed(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    seat, error = _read_text(event.data, "seat"), _read_mapping(event.data, "error")
    outcome = SeatOutcome(
        seat, SeatStatus.FAILED, _read_text(error, "code"), str(error.get("message") or "")
    )
    return state._replace(failures=_with_fact(state.failures, seat, Fact(time, event.id, outcome)))


def _on_finished(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    seat = _read_text(event.data, "seat")
    outcome = load(SeatOutcome, {**_read_mapping(event.data, "outcome"), "seat": seat})
    return state._replace(finished=_with_fact(state.finished, seat, Fact(time, event.id, outcome)))


def _on_reported(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    report = load(Report, _read_mapping(event.data, "report"))
    return state._replace(reports=_with_fact(state.reports, event.id, Fact(time, event.id, report)))


def _on_called(state: DeliberationState, event: Event, time: datetime) -> DeliberationState:
    usage = load(Usage, _read_mapping(event.data, "usage"))
    seat = str(event.data.get("seat") or "")
    return state._replace(
        calls=_with_fact(
            state.calls, _read_text(event.data, "call_id"), Fact(time, event.id, (seat, usage))
        )
    )


_HANDLERS: Mapping[EventType, Callable[[DeliberationState, Event, datetime], DeliberationState]] = {
    EventType.DELIBERATION_REQUESTED: _on_requested,
    EventType.DELIBERATION_STARTED: _on_started,
    EventType.SEAT_STARTED: _on_started,
    EventType.DELIBERATION_CANCELLED: _on_cancelled,
    EventType.DELIBERATION_PAUSED: _on_paused_or_resumed,
    EventType.DELIBERATION_RESUMED: _on_paused_or_resumed,
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
