"""From facts to an outcome. No clock is read: what happened after the last moment does not count,
so a
decision that is made again later, after a crash, is the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from moothall.collector.fold import UNDATED, DeliberationState, Fact
from moothall.domain.budget import Usage
from moothall.domain.evidence import Report
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import (
    OUT_OF_PATIENCE,
    Assessment,
    Candidate,
    Proposal,
    RankedCandidate,
    SeatOutcome,
    SeatStatus,
)
from moothall.domain.task import Deliberation
from moothall.domain.text import as_sentence
from moothall.ranking import rank
from moothall.ranking.gates import sanitize_line

T = TypeVar("T")
K = TypeVar("K")

GRACE = timedelta(seconds=10)
QUORUM = 0.5
RECHECK = "clean re-check"
_REPORT = 600  # characters of a report among the reasons
_UNNEEDED = {SeatStatus.UNSTARTED, SeatStatus.CANCELLED}


def last_moment(state: DeliberationState, grace: timedelta) -> datetime | None:
    """Return when the deliberation is decided with what there is: never while it is paused; None
    while nobody asked for it.
    """
    return (
        None
        if state.requested is None
        else state.pauses.later(state.requested.value.deadline) + grace
    )


def ready(state: DeliberationState, now: datetime, grace: timedelta = GRACE) -> bool:
    """Whether to decide: all seats finished, or it was cancelled, or its time is up. Never
    twice.
    """
    last = last_moment(state, grace)
    return last is not None and state.decided is None and (state.settled or now >= last)


def pending_outcome(state: DeliberationState) -> Outcome | None:
    """Return the document that callers poll while nothing is decided; None while nobody asked."""
    if state.requested is None:
        return None
    status = DeliberationStatus.PENDING if state.started is None else DeliberationStatus.IN_PROGRESS
    return _outcome(state.requested.value, status)


def decide(
    state: DeliberationState, *, quorum: float = QUORUM, grace: timedelta = GRACE
) -> Outcome:
    """Return how a deliberation that is `ready` ends. Its winner is not delivered yet.

    `quorum` is the share of needed seats that must have proposed and been checked when others are
    late.
    """
    last = last_moment(state, grace)
    if state.requested is None or last is None:
        raise ValueError(f"deliberation {state.task_id!r} was never requested")
    deliberation = state.requested.value
    state = _until(state, last)
    seats = tuple(_seat(state, seat) for seat in deliberation.seats)
    candidates = candidates_of(state)
    places = rank(candidates)
    outcome = replace(
        _outcome(deliberation, DeliberationStatus.COMPLETED),
        results=_results(places, candidates, _reports(state)),
        seats=seats,
        usage=_total(usage for _, usage in _values(state.calls)),
        duration_ms=_duration(state, deliberation),
    )
    if state.cancelled is not None:
        reason = state.cancelled.value.strip()
        return _end_as(
            outcome,
            DeliberationStatus.CANCELLED,
            f"Cancelled: {reason}" if reason else "Cancelled.",
        )
    missed = [
        seat
        for seat in seats
        if seat.status not in _UNNEEDED and seat.error_code != OUT_OF_PATIENCE
    ]
    late = any(seat.status is SeatStatus.LATE for seat in missed)
    evaluated = _seats_evaluated(state, candidates)
    needed = max(1, len(missed))
    if late and len(evaluated) / needed < quorum:
        said = (
            f"The time was up with {len(evaluated)} of {needed} seats proposed and checked; "
            f"{quorum:.0%} were needed."
        )
        return _end_as(outcome, DeliberationStatus.TIMEOUT, said)
    if not candidates:
        said = f"No seat proposed anything: {_codes(seats)}."
        if len({(seat.error_code, seat.error_message) for seat in seats}) == 1:
            said = f"{said} {seats[0].error_message}".rstrip()
        return _end_as(outcome, DeliberationStatus.FAILED, said)
    if not places[0].passed_gates:
        best = f"{places[0].candidate}, the nearest, does not: {places[0].reasons[0]}"
        return replace(
            outcome,
            final_state="no_winner",
            error_message=f"No candidate passes every gate; {best}",
        )
    return replace(
        outcome,
        winner_id=places[0].seat,
        proven=places[0].proven,
        evidence_level=places[0].level,
        undecided=places[0].undecided,
        final_state=_final_state(deliberation, outcome.results[0].diff, candidates, places[0]),
    )


def _final_state(
    deliberation: Deliberation, diff: str, candidates: Sequence[Candidate], winner: RankedCandidate
) -> str:
    if deliberation.is_answer(diff):
        return "answered"
    claim = any(
        item.proposal.candidate == winner.candidate and item.already_done for item in candidates
    )
    return "already_done" if claim and not winner.level.independent else "committed"


def candidates_of(state: DeliberationState) -> tuple[Candidate, ...]:
    """Return every proposal of a seat that was asked, with all that is known of it."""
    if state.requested is None:
        return ()
    asked = state.requested.value
    seats = set(asked.seats)
    proposals = [proposal for proposal in _pick_proposals(state) if proposal.seat in seats]
    tests = _latest_tests(proposals)
    found = []
    for proposal in proposals:
        of = {(proposal.candidate, proposal.fingerprint), (proposal.candidate, "")}
        facts = _assessment(state, proposal)
        cross = [(key, fact.value) for key, fact in sorted(state.cross.items()) if key[:2] in of]
        # A candidate that nobody re-checked lacks evidence, and missing evidence never passes.
        assessment = facts.value if facts else Assessment(applies=True, required=(RECHECK,))
        evidence = tuple(
            fact.value for key, fact in sorted(state.evidence.items()) if key[:2] in of
        )
        candidate = Candidate(
            proposal=proposal,
            assessment=replace(assessment, evidence=evidence),
            cross=tuple(
                run for (*_, author, made), run in cross if made in {"", tests.get(author)}
            ),
            reviews=tuple(
                fact.value for key, fact in sorted(state.reviews.items()) if key[:2] in of
            ),
            about_text=asked.is_answer(proposal.diff),
            missing=_missing(state, proposal.candidate),
        )
        found.append(candidate)
    return tuple(found)


def _pick_proposals(state: DeliberationState) -> list[Proposal]:
    """Return one proposal a name. Where two hosts made two, the one that was judged stands, of
    equals the earlier.
    """
    names: dict[str, list[Fact[Proposal]]] = {}
    for (name, _), fact in state.proposals.items():
        names.setdefault(name, []).append(fact)

    def worth(fact: Fact[Proposal]) -> tuple[bool, datetime, str]:
        return _assessment(state, fact.value) is None, fact.time, fact.event_id

    return [min(facts, key=worth).value for _, facts in sorted(names.items())]


def _assessment(state: DeliberationState, proposal: Proposal) -> Fact[Assessment] | None:
    name = proposal.candidate
    return state.assessments.get((name, proposal.fingerprint)) or state.assessments.get((name, ""))


def _latest_tests(proposals: Iterable[Proposal]) -> dict[str, str]:
    """Say by author which of its proposals its tests are taken from: the latest that brought
    any.
    """
    bringing = (proposal for proposal in proposals if proposal.own_tests)
    return {
        proposal.seat: proposal.fingerprint
        for proposal in sorted(bringing, key=lambda item: item.revision)
    }


def _until(state: DeliberationState, last: datetime) -> DeliberationState:
    """The state as it was at `last`."""

    def keep(facts: Mapping[K, Fact[T]]) -> Mapping[K, Fact[T]]:
        return {key: fact for key, fact in facts.items() if fact.time <= last}

    return state._replace(
        cancelled=state.cancelled if state.cancelled and state.cancelled.time <= last else None,
        proposals=keep(state.proposals),
        assessments=keep(state.assessments),
        evidence=keep(state.evidence),
        cross=keep(state.cross),
        reviews=keep(state.reviews),
        failures=keep(state.failures),
        finished=keep(state.finished),
        calls=keep(state.calls),
        reports=keep(state.reports),
    )


def _seat(state: DeliberationState, seat: str) -> SeatOutcome:
    """What became of a seat; one that never answered is late, or cancelled with all of them."""
    usage = _total(spent for caller, spent in _values(state.calls) if caller == seat)
    if seat in state.finished:
        ended = state.finished[seat]
        return replace(
            ended.value,
            usage=usage if usage.calls else ended.value.usage,
            duration_ms=_since_request(state, ended.time),
        )
    if state.cancelled is not None:
        return SeatOutcome(seat, SeatStatus.CANCELLED, usage=usage)
    if seat in state.failures:
        return replace(state.failures[seat].value, usage=usage)
    said = "no answer before the deadline" + (
        "; what it had proposed is ranked" if _has_proposed(state, seat) else ""
    )
    return SeatOutcome(seat, SeatStatus.LATE, "DEADLINE_EXCEEDED", said, usage)


def _has_proposed(state: DeliberationState, seat: str) -> bool:
    return any(proposal.seat == seat for proposal in _values(state.proposals))


def _seats_evaluated(state: DeliberationState, candidates: Sequence[Candidate]) -> set[str]:
    return {
        item.proposal.seat
        for item in candidates
        if item.about_text or _assessment(state, item.proposal) is not None
    }


def _reports(state: DeliberationState) -> tuple[Report, ...]:
    """Return the reports of agents beside the seats, sorted by name and message."""
    return tuple(sorted(_values(state.reports), key=lambda item: (item.agent, item.message)))


def _missing(state: DeliberationState, candidate: str) -> tuple[str, ...]:
    """Return a message for each review of a candidate that was requested and is missing."""
    given = {reviewer for (name, _, reviewer, _) in state.reviews if name == candidate}
    reports = {
        item.agent: item.message
        for item in _reports(state)
        if item.missing and item.candidate == candidate
    }
    return tuple(message for agent, message in sorted(reports.items()) if agent not in given)


def _reason(report: Report) -> str:
    """Return a report as a reason, with the tokens of its agent."""
    message = sanitize_line(report.message, _REPORT)
    spent = report.usage.prompt_tokens + report.usage.completion_tokens
    return as_sentence(
        f"{message[:1].upper()}{message[1:]}" + (f" ({spent} tokens)" if spent else "")
    )


def _results(
    places: Sequence[RankedCandidate], candidates: Sequence[Candidate], reports: Sequence[Report]
) -> tuple[Result, ...]:
    """Return the places with their evidence. Reports about no single answer are reasons of the
    first.
    """
    general = tuple(_reason(item) for item in reports if not item.candidate)
    by_name = {item.proposal.candidate: item for item in candidates}
    results = []
    for place in places:
        candidate = by_name[place.candidate]
        proposal = candidate.proposal
        results.append(
            Result(
                rank=place.rank,
                seat=place.seat,
                role=proposal.role,
                score=place.score,
                reasons=(*place.reasons, *(general if place.rank == 1 else ())),
                passed_gates=place.passed_gates,
                proven=place.proven,
                evidence_level=place.level,
                undecided=place.undecided,
                evidence=candidate.assessment.evidence,
                reviews=candidate.reviews,
                content=proposal.content,
                diff=proposal.diff,
                commit_sha=proposal.commit_sha,
                revision=proposal.revision,
                operations=proposal.operations,
                created_at_ms=proposal.created_at_ms,
                checks={item.check: str(item.verdict) for item in candidate.assessment.evidence},
                message=proposal.message,
            )
        )
    return tuple(results)


def _outcome(deliberation: Deliberation, status: DeliberationStatus) -> Outcome:
    return Outcome(
        task_id=deliberation.task_id,
        status=status,
        tenant=deliberation.tenant,
        story_id=deliberation.story_id,
        role=deliberation.role,
        agent_count=len(deliberation.seats),
        origin=deliberation.origin,
    )


def _end_as(outcome: Outcome, status: DeliberationStatus, message: str) -> Outcome:
    return replace(outcome, status=status, final_state=status.value.lower(), error_message=message)


def _duration(state: DeliberationState, deliberation: Deliberation) -> int:
    """Milliseconds from the request to what brought the decision about: a cancel, the last seat, or
    the deadline.
    """
    if state.requested is None:
        return 0
    if state.cancelled is not None:
        end = state.cancelled.time
    elif state.all_finished:
        end = max(state.finished[seat].time for seat in deliberation.seats)
    else:
        end = state.pauses.later(deliberation.deadline)
    return _since_request(state, end)


def _since_request(state: DeliberationState, end: datetime) -> int:
    """Milliseconds; 0 where one of the two has no time."""
    if state.requested is None or UNDATED in {state.requested.time, end}:
        return 0
    return max(0, round((end - state.requested.time).total_seconds() * 1000))


def _codes(seats: Sequence[SeatOutcome]) -> str:
    return ", ".join(
        f"{count} x {code}"
        for code, count in sorted(Counter(s.error_code or s.status.value for s in seats).items())
    )


def _values(facts: Mapping[K, Fact[T]]) -> list[T]:
    """Values in the order of their keys: sums of floats must not depend on who came first."""
    return [facts[key].value for key in sorted(facts, key=str)]


def _total(usages: Iterable[Usage]) -> Usage:
    return sum(usages, Usage())
