"""Decision of a deliberation from its facts, and delivery of the winner as a branch.

The decision reads no clock and ignores facts after the decision deadline, so a repeated decision,
after a crash, is the same.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from moothall import telemetry
from moothall.collector.fold import UNDATED, DeliberationState, Fact
from moothall.domain.budget import Usage
from moothall.domain.evidence import Report
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import (
    OUT_OF_PATIENCE,
    Assessment,
    Candidate,
    CandidateRank,
    Proposal,
    SeatOutcome,
    SeatStatus,
)
from moothall.domain.repository import Base
from moothall.domain.task import FORGE, Deliberation, RepositoryRef
from moothall.domain.text import HOLE, as_sentence, is_masked
from moothall.errors import MoothallError, PatchRefused
from moothall.ports import Repositories
from moothall.ranking import rank
from moothall.ranking.criteria import sanitize_line

T = TypeVar("T")
K = TypeVar("K")

GRACE = timedelta(seconds=10)
QUORUM = 0.5
RECHECK = "clean re-check"
_MAX_REPORT_CHARS = 600  # of a report among the reasons
_UNNEEDED_STATUSES = {SeatStatus.UNSTARTED, SeatStatus.CANCELLED}


def decision_deadline(state: DeliberationState, grace: timedelta) -> datetime | None:
    """Return when the deliberation is decided with the facts so far.

    Pauses postpone it, without limit while paused. Return None if the deliberation was not
    requested.
    """
    return (
        None
        if state.requested is None
        else state.pauses.extend(state.requested.value.deadline) + grace
    )


def is_ready(state: DeliberationState, now: datetime, grace: timedelta = GRACE) -> bool:
    """True if the deliberation should be decided: all seats have finished, it was cancelled, or its
    time is up. A decided one is never ready.
    """
    deadline = decision_deadline(state, grace)
    return deadline is not None and state.decided is None and (state.settled or now >= deadline)


def pending_outcome(state: DeliberationState) -> Outcome | None:
    """Return the status document of an undecided deliberation; None if it was not requested."""
    if state.requested is None:
        return None
    status = DeliberationStatus.PENDING if state.started is None else DeliberationStatus.IN_PROGRESS
    return _build_outcome(state.requested.value, status)


def decide(
    state: DeliberationState, *, quorum: float = QUORUM, grace: timedelta = GRACE
) -> Outcome:
    """Return the outcome of a deliberation that is ready. The winner is not delivered yet.

    quorum: the share of needed seats that must have proposed and been checked if others are late.
    """
    deadline = decision_deadline(state, grace)
    if state.requested is None or deadline is None:
        raise ValueError(f"deliberation {state.task_key!r} was never requested")
    deliberation = state.requested.value
    state = _state_at(state, deadline)
    seats = tuple(_seat_outcome(state, seat) for seat in deliberation.seats)
    candidates = collect_candidates(state)
    ranked = rank(candidates)
    outcome = replace(
        _build_outcome(deliberation, DeliberationStatus.COMPLETED),
        results=_build_results(ranked, candidates, _sorted_reports(state)),
        seats=seats,
        usage=_sum_usages(usage for _, usage in _sorted_values(state.calls)),
        duration_ms=_duration_ms(state, deliberation),
    )
    if state.cancelled is not None:
        reason = state.cancelled.value.strip()
        return _with_error(
            outcome,
            DeliberationStatus.CANCELLED,
            f"Cancelled: {reason}" if reason else "Cancelled.",
        )
    if missing := _missing_quorum(seats, len(_evaluated_seats(state, candidates)), quorum):
        return _with_error(outcome, DeliberationStatus.TIMEOUT, missing)
    if not candidates:
        message = f"No seat proposed anything: {_count_error_codes(seats)}."
        if len({(seat.error_code, seat.error_message) for seat in seats}) == 1:
            message = f"{message} {seats[0].error_message}".rstrip()
        return _with_error(outcome, DeliberationStatus.FAILED, message)
    if not ranked[0].passed_gates:
        nearest = f"{ranked[0].candidate}, the nearest, does not: {ranked[0].reasons[0]}"
        return replace(
            outcome,
            final_state="no_winner",
            error_message=f"No candidate passes all acceptance checks; {nearest}",
        )
    return replace(
        outcome,
        winner_id=ranked[0].seat,
        proven=ranked[0].proven,
        evidence_level=ranked[0].level,
        undecided=ranked[0].undecided,
        final_state=_final_state(deliberation, outcome.results[0].diff, candidates, ranked[0]),
    )


def _missing_quorum(seats: Sequence[SeatOutcome], evaluated: int, quorum: float) -> str:
    """Return the message that too few of the needed seats were `evaluated` in time; '' if no needed
    seat is late or enough were.
    """
    needed_seats = [
        seat
        for seat in seats
        if seat.status not in _UNNEEDED_STATUSES and seat.error_code != OUT_OF_PATIENCE
    ]
    needed_count = max(1, len(needed_seats))
    if evaluated / needed_count >= quorum or not any(
        seat.status is SeatStatus.LATE for seat in needed_seats
    ):
        return ""
    return (
        f"The time ran out when {evaluated} of {needed_count} seats had proposed and were checked; "
        f"{quorum:.0%} were needed."
    )


def _final_state(
    deliberation: Deliberation, diff: str, candidates: Sequence[Candidate], winner: CandidateRank
) -> str:
    if deliberation.judges:
        return "judged"
    if deliberation.is_answer(diff):
        return "answered"
    claims_done = any(
        candidate.proposal.candidate == winner.candidate and candidate.already_done
        for candidate in candidates
    )
    return "already_done" if claims_done and not winner.level.independent else "committed"


def collect_candidates(state: DeliberationState) -> tuple[Candidate, ...]:
    """Return the proposals of requested seats as candidates, with all facts about them."""
    if state.requested is None:
        return ()
    deliberation = state.requested.value
    seats = set(deliberation.seats)
    proposals = [proposal for proposal in _pick_proposals(state) if proposal.seat in seats]
    latest_tests = _latest_tests(proposals)
    candidates = []
    for proposal in proposals:
        keys = {(proposal.candidate, proposal.fingerprint), (proposal.candidate, "")}
        assessment_fact = _find_assessment(state, proposal)
        cross_runs = [
            (key, fact.value) for key, fact in sorted(state.cross.items()) if key[:2] in keys
        ]
        # A candidate without a re-check lacks evidence, and missing evidence never passes.
        assessment = (
            assessment_fact.value
            if assessment_fact
            else Assessment(applies=True, required=(RECHECK,))
        )
        evidence = tuple(
            fact.value for key, fact in sorted(state.evidence.items()) if key[:2] in keys
        )
        candidate = Candidate(
            proposal=proposal,
            assessment=replace(assessment, evidence=evidence),
            cross=tuple(
                run
                for (*_, author, fingerprint), run in cross_runs
                if fingerprint in {"", latest_tests.get(author)}
            ),
            reviews=tuple(
                fact.value for key, fact in sorted(state.reviews.items()) if key[:2] in keys
            ),
            about_text=deliberation.is_answer(proposal.diff),
            missing=_missing_reviews(state, proposal.candidate),
        )
        candidates.append(candidate)
    return tuple(candidates)


def _pick_proposals(state: DeliberationState) -> list[Proposal]:
    """Return one proposal per name.

    If two hosts made one each, prefer the assessed one, then the earlier.
    """
    facts_by_name: dict[str, list[Fact[Proposal]]] = {}
    for (name, _), fact in state.proposals.items():
        facts_by_name.setdefault(name, []).append(fact)

    def preference(fact: Fact[Proposal]) -> tuple[bool, datetime, str]:
        return _find_assessment(state, fact.value) is None, fact.time, fact.event_id

    return [min(facts, key=preference).value for _, facts in sorted(facts_by_name.items())]


def _find_assessment(state: DeliberationState, proposal: Proposal) -> Fact[Assessment] | None:
    name = proposal.candidate
    return state.assessments.get((name, proposal.fingerprint)) or state.assessments.get((name, ""))


def _latest_tests(proposals: Iterable[Proposal]) -> dict[str, str]:
    """Return by author the fingerprint of its latest proposal with tests."""
    with_tests = (proposal for proposal in proposals if proposal.own_tests)
    return {
        proposal.seat: proposal.fingerprint
        for proposal in sorted(with_tests, key=lambda proposal: proposal.revision)
    }


def _state_at(state: DeliberationState, deadline: datetime) -> DeliberationState:
    """Return the state without facts after a deadline."""

    def select_timely(facts: Mapping[K, Fact[T]]) -> Mapping[K, Fact[T]]:
        return {key: fact for key, fact in facts.items() if fact.time <= deadline}

    return state._replace(
        cancelled=state.cancelled if state.cancelled and state.cancelled.time <= deadline else None,
        proposals=select_timely(state.proposals),
        assessments=select_timely(state.assessments),
        evidence=select_timely(state.evidence),
        cross=select_timely(state.cross),
        reviews=select_timely(state.reviews),
        failures=select_timely(state.failures),
        finished=select_timely(state.finished),
        calls=select_timely(state.calls),
        reports=select_timely(state.reports),
    )


def _seat_outcome(state: DeliberationState, seat: str) -> SeatOutcome:
    """Return the outcome of a seat. A seat without an end is late, or cancelled with the
    deliberation.
    """
    usage = _sum_usages(spent for caller, spent in _sorted_values(state.calls) if caller == seat)
    if seat in state.finished:
        finished = state.finished[seat]
        return replace(
            finished.value,
            usage=usage if usage.calls else finished.value.usage,
            duration_ms=_ms_since_request(state, finished.time),
        )
    if state.cancelled is not None:
        return SeatOutcome(seat, SeatStatus.CANCELLED, usage=usage)
    if seat in state.failures:
        return replace(state.failures[seat].value, usage=usage)
    message = "no answer before the deadline" + (
        "; its earlier proposal is ranked" if _has_proposed(state, seat) else ""
    )
    return SeatOutcome(seat, SeatStatus.LATE, "DEADLINE_EXCEEDED", message, usage)


def _has_proposed(state: DeliberationState, seat: str) -> bool:
    return any(proposal.seat == seat for proposal in _sorted_values(state.proposals))


def _evaluated_seats(state: DeliberationState, candidates: Sequence[Candidate]) -> set[str]:
    return {
        candidate.proposal.seat
        for candidate in candidates
        if candidate.about_text or _find_assessment(state, candidate.proposal) is not None
    }


def _sorted_reports(state: DeliberationState) -> tuple[Report, ...]:
    """Return the reports of agents other than the seats, sorted by agent and message."""
    return tuple(
        sorted(_sorted_values(state.reports), key=lambda report: (report.agent, report.message))
    )


def _missing_reviews(state: DeliberationState, candidate: str) -> tuple[str, ...]:
    """Return a message for each review of a candidate that was requested and is missing."""
    reviewers = {reviewer for (name, _, reviewer, _) in state.reviews if name == candidate}
    messages = {
        report.agent: report.message
        for report in _sorted_reports(state)
        if report.missing and report.candidate == candidate
    }
    return tuple(message for agent, message in sorted(messages.items()) if agent not in reviewers)


def _format_report(report: Report) -> str:
    """Return a report as a reason, with the number of tokens that its agent used."""
    message = sanitize_line(report.message, _MAX_REPORT_CHARS)
    tokens = report.usage.prompt_tokens + report.usage.completion_tokens
    return as_sentence(
        f"{message[:1].upper()}{message[1:]}" + (f" ({tokens} tokens)" if tokens else "")
    )


def _build_results(
    ranked: Sequence[CandidateRank], candidates: Sequence[Candidate], reports: Sequence[Report]
) -> tuple[Result, ...]:
    """Return the ranked candidates with their evidence.

    Reports that concern no single answer become reasons of the first.
    """
    general_reasons = tuple(_format_report(report) for report in reports if not report.candidate)
    by_name = {report.proposal.candidate: report for report in candidates}
    results = []
    for entry in ranked:
        candidate = by_name[entry.candidate]
        proposal = candidate.proposal
        results.append(
            Result(
                rank=entry.rank,
                seat=entry.seat,
                role=proposal.role,
                score=entry.score,
                reasons=(*entry.reasons, *(general_reasons if entry.rank == 1 else ())),
                passed_gates=entry.passed_gates,
                proven=entry.proven,
                evidence_level=entry.level,
                undecided=entry.undecided,
                evidence=candidate.assessment.evidence,
                reviews=candidate.reviews,
                content=proposal.content,
                diff=proposal.diff,
                commit_sha=proposal.commit_sha,
                revision=proposal.revision,
                operations=proposal.operations,
                created_at_ms=proposal.created_at_ms,
                checks={
                    report.check: str(report.verdict) for report in candidate.assessment.evidence
                },
                message=proposal.message,
            )
        )
    return tuple(results)


def _build_outcome(deliberation: Deliberation, status: DeliberationStatus) -> Outcome:
    return Outcome(
        task_id=deliberation.task_id,
        status=status,
        tenant=deliberation.tenant,
        story_id=deliberation.story_id,
        role=deliberation.role,
        agent_count=len(deliberation.seats),
        origin=deliberation.origin,
    )


def _with_error(outcome: Outcome, status: DeliberationStatus, message: str) -> Outcome:
    return replace(outcome, status=status, final_state=status.value.lower(), error_message=message)


def _duration_ms(state: DeliberationState, deliberation: Deliberation) -> int:
    """Return the time in milliseconds from the request to the cancellation, the end of the last
    seat, or the deadline, whichever led to the decision.
    """
    if state.requested is None:
        return 0
    if state.cancelled is not None:
        end_time = state.cancelled.time
    elif state.all_finished:
        end_time = max(state.finished[seat].time for seat in deliberation.seats)
    else:
        end_time = state.pauses.extend(deliberation.deadline)
    return _ms_since_request(state, end_time)


def _ms_since_request(state: DeliberationState, end_time: datetime) -> int:
    """Return the time since the request in milliseconds; 0 if one of the times is unknown."""
    if state.requested is None or UNDATED in {state.requested.time, end_time}:
        return 0
    return max(0, round((end_time - state.requested.time).total_seconds() * 1000))


def _count_error_codes(seats: Sequence[SeatOutcome]) -> str:
    return ", ".join(
        f"{count} x {code}"
        for code, count in sorted(
            Counter(seat.error_code or seat.status.value for seat in seats).items()
        )
    )


def _sorted_values(facts: Mapping[K, Fact[T]]) -> list[T]:
    """Return the values sorted by key, so that sums of floats do not depend on the order of
    arrival.
    """
    return [facts[key].value for key in sorted(facts, key=str)]


def _sum_usages(usages: Iterable[Usage]) -> Usage:
    return sum(usages, Usage())


# Delivery of the winner as a branch in its repository.


log = telemetry.get_logger(__name__)

_MAX_MESSAGE_CHARS = 4_000
_MAX_TITLE_CHARS = 72
_TRAILER = re.compile(r"\s*(?:[\w-]+-by|deliberation|winner|skip-checks)\s*:", re.IGNORECASE)
_SKIP_CI = re.compile(
    r"\[(?:skip|no|ci)[ -](?:ci|skip|actions|checks)\]|\[(?:actions|azurepipelines)[ "
    r"-]skip\]|\*\*\*NO_CI\*\*\*",
    re.IGNORECASE,
)


async def deliver(
    repositories: Repositories, deliberation: Deliberation, outcome: Outcome
) -> Outcome:
    """Deliver the winner as a branch.

    A failure does not revoke the decision; the outcome describes it.
    """
    winner = outcome.results[0]
    branch = f"moothall/{deliberation.task_id}"
    requested_ref = deliberation.repository or RepositoryRef()
    # Prefer the registry's id: a URL would be fetched and checked again.
    ref = RepositoryRef(
        id=requested_ref.id,
        url="" if requested_ref.id else requested_ref.url,
        ref=deliberation.base_sha or "",
    )
    try:
        with (
            telemetry.span("deliver", {"moothall.branch": branch}),
            telemetry.metrics.DELIVER_SECONDS.time(),
        ):
            base = await repositories.resolve(ref, tenant=deliberation.tenant)
            diff = await find_unmasked_diff(repositories, base, winner)
            sha = await repositories.deliver(
                base, diff, branch, _commit_message(deliberation, outcome), deliberation.merge
            )
    except MoothallError as error:
        log.warning(
            "delivery failed", task_id=deliberation.task_id, code=error.code, reason=error.message
        )
        message = (
            f"{winner.seat} won, but branch {branch} could not be created: {error.message} "
            f"[{error.code}]"
        )
        return replace(outcome, final_state="failed", error_message=message)
    return replace(outcome, branch=branch, commit_sha=sha)


async def find_unmasked_diff(repositories: Repositories, base: Base, result: Result) -> str:
    """Return the diff of a result as it was run.

    The log's diff may lack text that looked like a secret; the commit has it. Raises `PatchRefused`
    if the commit is gone and an added line is masked, since only a tested diff may be used.
    """
    if HOLE not in result.diff or not result.commit_sha:
        return result.diff
    try:
        return await repositories.diff(base, result.commit_sha)
    except PatchRefused:
        if is_masked(result.diff):
            raise
        return result.diff  # a masked context line would not apply


def _commit_message(deliberation: Deliberation, outcome: Outcome) -> str:
    """Return a message that depends on the decision only, so that a repeated delivery makes the
    same commit.
    """
    title = commit_title(deliberation.description)
    # On a forge, a commit message can close issues and notify people.
    message = (
        "" if deliberation.origin == FORGE else clean_commit_message(outcome.results[0].message)
    )
    return (
        f"{message or title}\n\nDeliberation: {deliberation.task_id}\nWinner: {outcome.winner_id} "
        f"({outcome.level.words})\n"
    )


def commit_title(description: str) -> str:
    """Return the first line of a commit message: the task's first sentence if it is short enough,
    else its first words.
    """
    text = " ".join(description.strip().partition("\n\n")[0].split())
    sentence = text.partition(". ")[0]
    if len(text) <= _MAX_TITLE_CHARS:
        return text
    if len(sentence) <= _MAX_TITLE_CHARS:
        return sentence
    shortened = textwrap.shorten(text, _MAX_TITLE_CHARS, placeholder="…")
    return shortened if shortened != "…" else f"{text[: _MAX_TITLE_CHARS - 1]}…"


def clean_commit_message(message: str) -> str:
    """Return a seat's commit message with printable lines only, without trailers and markers that
    skip CI.
    """
    text = "\n".join(
        "".join(char if char.isprintable() else " " for char in line)
        for line in message.splitlines()
    )
    while _SKIP_CI.search(text):  # the rest may form another marker: "[skip[skip ci] ci]"
        text = _SKIP_CI.sub("", text)
    lines = [line.rstrip() for line in text.split("\n") if not _TRAILER.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()[:_MAX_MESSAGE_CHARS]
