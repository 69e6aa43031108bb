"""The protocols: the same steps in different orders.

single             propose
ask                propose; without a change, the final text is the answer and is judged as text
vote               propose · cross-tests
debate             propose · (each seat reviews another's answer, authors revise), in rounds
                   · cross-tests
tests_then_verify  propose · (revise on execution evidence, if no candidate solves the task), in
                   rounds · cross-tests · reviews on ties
tournament         propose · cross-tests · (second wave of proposals with notes on the first, if
                   no candidate is reproduced or proven · cross-tests) · comparison of summaries in
                   small groups, on ties

judge              propose (the first seat: a given change) · cross-tests · further evidence about
                   this change and a review of it; without a model, only what tests show

Protocols that review ties also compare in groups if more answers are tied than one comparison can
take, or if the reviews leave a tie and the model's context window is large enough. Before a
revision, an author reads summaries of the other answers and of the tests that pass on them.
`limits.second_wave` adds a second wave to other protocols, or disables it.

Peer review adds reviews by all seats to any protocol. Text has no checks: all distinct answers are
reviewed. A seat that fails, is late, is cancelled or never starts is an outcome. Each seat has
exactly one `seat.finished` at the end.

The test writer (`judging/test_writer.py`) works after proposals and revisions, and before a second
wave, if no candidate is proven and passes the acceptance checks. It never works in `ask` or about
text. If different answers are tied afterwards, and the protocol reviews ties, the tie-breaker
(`judging/tie_breaker.py`) compares them before they are reviewed.

Early stop: the seats without a proposal are cancelled once a strict majority of all seats has
proposed patches that pass the acceptance checks, are reproduced or proven, and behave the same
under all tests, including those written by seats. A later patch could win only by tests of its own
author that the majority's patches fail. There is no early stop if reviews were requested.

Seats in turn: the embedded model is no faster for several seats at once. Its seats are filled one
after the other until a candidate is proven, passes the acceptance checks and leaves no test failing
besides the fixed ones (`llm.seats_in_turn`).

Patience: once a candidate is proven and passes the acceptance checks, the other seats get
`limits.patience` times the time that it took, at least 10 seconds. Seats without a
proposal are late then. A stuck seat must not delay a good answer.

Confirmation: the tests that prove a candidate run again only if it ranks first at the end, or
before a decision about further seats, waves or tests (`judging/further_runs.py`). If they do not
hold, the next candidate is confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from statistics import fmean

from moothall.concurrency import leaves, seconds_until
from moothall.deliberation.context import (
    DeliberationContext,
    Dependencies,
    SeatState,
    create_context,
)
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.claims import check_claims, is_done_already
from moothall.deliberation.judging.comparison import (
    GROUP_SIZE,
    break_tie,
    compare_answers,
    find_tie,
)
from moothall.deliberation.judging.evaluator import solves
from moothall.deliberation.judging.evidence_agents import publish_report
from moothall.deliberation.judging.given_change import judge_change
from moothall.deliberation.judging.reviews import (
    WIDE_WINDOW_TOKENS,
    Answer,
    assign_reviews,
    collect_reviews,
    excuse_superseded,
    find_contradicting_seats,
    group_answers,
)
from moothall.deliberation.judging.test_writer import IndependentTests
from moothall.deliberation.recorded_model import Recording
from moothall.deliberation.rival_notes import distil_notes
from moothall.deliberation.seats import find_approaches, outcome_of, propose, propose_again, revise
from moothall.domain.codec import dump
from moothall.domain.council import PROTOCOLS, Protocol
from moothall.domain.event import EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.proposal import OUT_OF_PATIENCE, Candidate, Review, SeatOutcome, SeatStatus
from moothall.domain.repository import Prepared
from moothall.domain.task import CHANGE, Deliberation
from moothall.errors import BusUnavailable, MoothallError
from moothall.ranking import find_ties, have_same_change, is_done, passes_acceptance_checks

HOST_STOPS = "host stops"
"""Cancel a deliberation's task with this message if another process continues the work: no seat is
reported as finished then.
"""

SECOND_WAVE = "second-wave"
"""The agent name under which a second wave is reported."""
FINAL_REVIEWS = "final-reviews"
"""The agent name under which missing final reviews of text are reported."""
_MIN_SEATS = 2
_CLOSING_TIMEOUT_SECONDS = 5.0


async def deliberate(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    recording: Recording,
) -> None:
    """Run a deliberation; all results are in the events it publishes.

    `prepared` is None for deliberations about text. Raises `BusUnavailable` if events could not be
    published; run the deliberation again with a recording then.
    """
    try:
        council = await create_context(deliberation, prepared, dependencies, recording)
    except BusUnavailable:
        raise
    except MoothallError as error:
        await _publish_failed_seats(
            EventWriter(
                dependencies.log, deliberation, dependencies.source, recording.recorded_ids
            ),
            error,
        )
        return
    await council.events.publish(
        EventType.DELIBERATION_STARTED,
        "",
        seats=list(deliberation.seats),
        protocol=deliberation.protocol,
        reply_mode=council.reply_mode,
        models=council.models,
        limits=council.limits,
        guides=council.guides,
    )
    try:
        await _run_until_deadline(council)
    except asyncio.CancelledError as error:
        if HOST_STOPS not in error.args:
            # Bounded, because the canceller waits. Seats that are not reported in time are late at
            # the deliberation's own deadline.
            with suppress(TimeoutError, BusUnavailable):
                async with asyncio.timeout(_CLOSING_TIMEOUT_SECONDS):
                    await _finish_seats(council)
        raise
    except ExceptionGroup as group:
        if unavailable := group.subgroup(BusUnavailable):
            raise next(leaves(unavailable)) from group
        known_errors, bugs = group.split(MoothallError)
        if known_errors is None or bugs is not None:
            raise
        # Such as a full disk, or a sandbox that does not start.
        first_error = next(leaves(known_errors))
        for seat_state in council.seat_states:
            seat_state.record_end(SeatStatus.FAILED, first_error.code, first_error.message)
    await _finish_seats(council)


async def _run_until_deadline(council: DeliberationContext) -> None:
    """Run the protocol until its end or the deadline; unfinished seats are late."""
    seconds = seconds_until(council.deadlines.end)
    try:
        async with asyncio.timeout(max(seconds, 0)) as limit:
            await _run_protocol(council)
    except TimeoutError:
        if not limit.expired():
            raise
        for seat_state in council.seat_states:
            if seat_state.status is SeatStatus.CANCELLED:
                seat_state.record_end(
                    SeatStatus.LATE, "DEADLINE_EXCEEDED", "the seat was not done in time"
                )


async def _publish_failed_seats(events: EventWriter, error: MoothallError) -> None:
    """Report every seat as failed because something that all seats need, such as the model, is
    missing.
    """
    for seat in events.deliberation.seats:
        outcome = SeatOutcome(seat, SeatStatus.FAILED, error.code, error.message)
        await events.publish(EventType.SEAT_FINISHED, seat, seat=seat, outcome=dump(outcome))
    await events.flush()


async def _finish_seats(council: DeliberationContext) -> None:
    # Before the end is recorded: later work may need the released budget.
    await council.model.close()
    if council.evaluator is not None:
        await council.evaluator.publish_unconfirmed(council.judged)
    # The collector decides once all seats have finished, so `seat.finished` must never be recorded
    # before earlier events (`Log.post`).
    for seat_state in council.seat_states:
        if seat_state.status is SeatStatus.CANCELLED and council.proposing.stopped_early:
            seat_state.record_end(
                SeatStatus.CANCELLED,
                "CANCELLED",
                "no proposal of this seat could have won any more",
            )
        await council.events.publish(
            EventType.SEAT_FINISHED,
            seat_state.seat,
            seat=seat_state.seat,
            outcome=dump(outcome_of(council, seat_state)),
        )
    await council.events.flush()


def _protocol_of(council: DeliberationContext) -> Protocol:
    return PROTOCOLS[council.deliberation.protocol]


async def _run_protocol(council: DeliberationContext) -> None:
    """Run the steps of the council's protocol."""
    protocol, tests = _protocol_of(council), IndependentTests(council)
    if protocol.one_seat:
        await _propose_all(council, council.seat_states[:1])
        _update_judged(council, await excuse_superseded(council))
    else:
        await _fill_seats(council)
        await _run_revision_rounds(council, protocol)
        await _run_cross_tests(council)
        _update_judged(council, await check_claims(council))
        await _run_second_wave(council, protocol, tests)
    _update_judged(council, await check_claims(council))
    await _confirm_first(council)
    _update_judged(council, await tests.apply(published=True))
    if protocol.reviews_ties:
        if tied := find_tie(council):
            _update_judged(council, await break_tie(council, tied))
        await _review_ties(council)
    await _review_by_peers(council)
    await _confirm_first(council)
    if protocol.judges:
        await judge_change(council, tests.author)


async def _confirm_first(council: DeliberationContext) -> None:
    """Confirm the answer that ranks first. If another one ranks first then, confirm that. A given
    change is confirmed wherever it ranks.
    """
    evaluator = council.evaluator
    if evaluator is None:
        return
    async with council.judging.lock:
        for item in council.judged if council.deliberation.judges else ():
            if item.proposal.seat == CHANGE:
                _update_judged(council, await evaluator.confirm(item.proposal.diff, council.judged))
        _update_judged(council, await evaluator.confirm_first(council.reviewed))


async def _run_revision_rounds(council: DeliberationContext, protocol: Protocol) -> None:
    for round_ in range(1, council.deliberation.rounds + 1):
        if not _time_left(council):
            return
        if protocol.revises_on:
            await _run_cross_tests(council)  # authors read the results
        if protocol.revises_on == "reviews" and len(council.proposers) >= _MIN_SEATS:
            distinct_answers = group_answers(
                seat_state.latest.proposal for seat_state in council.proposers
            )
            reviews = await collect_reviews(
                council,
                assign_reviews(distinct_answers, _seat_names(council.proposers), each=1),
                "critique",
                round_,
            )
            await _revise_all(council, council.proposers, round_, reviews)
        elif (
            protocol.revises_on == "evidence"
            and not council.about_text
            and not await _has_solution(council)
        ):
            # A seat that was stuck at the end has seen this evidence already.
            failed = [
                seat_state
                for seat_state in council.proposers
                if not solves(seat_state.latest) and not seat_state.stuck_reason
            ]
            await _revise_all(council, failed, round_)


async def _run_second_wave(
    council: DeliberationContext, protocol: Protocol, tests: IndependentTests
) -> None:
    """Let all seats propose once more, with notes on the first proposals, if none of these is
    reproduced or proven.
    """
    setting = council.dependencies.rules.limits.second_wave
    enabled = setting == "on" or (setting == "auto" and protocol.second_wave)
    if not enabled or council.about_text or not _time_left(council) or council.ledger.used_up:
        return
    if is_done_already(council):
        return
    await _confirm_first(council)
    _update_judged(council, await tests.apply(published=False))
    if any(passes_acceptance_checks(item) and item.level.independent for item in council.judged):
        return
    wave = council.deliberation.rounds + 1
    council.proposing.notes = await distil_notes(council, wave, tests.failing_everywhere)
    council.proposing.wave = wave
    await publish_report(
        council,
        SECOND_WAVE,
        "second wave: no answer is reproduced or proven, so all seats begin anew with notes",
    )
    async with asyncio.TaskGroup() as group:
        for seat_state in council.seat_states:
            group.create_task(propose_again(council, seat_state), name=f"{seat_state.seat}.w{wave}")
    await _run_cross_tests(council)


async def _review_ties(council: DeliberationContext) -> None:
    if council.about_text or council.deliberation.peer_review:
        return
    tied = find_ties(council.judged)
    if have_same_change(tied):
        return
    # Models that are asked for one function, because longer prompts confuse them, cannot judge.
    judges = [
        seat for seat in council.deliberation.seats if council.setup_of(seat).function is None
    ]
    if tied and judges:
        tied_answers = _with_all_authors(
            council, group_answers(candidate.proposal for candidate in tied)
        )
        if _protocol_of(council).compares or len(tied_answers) > GROUP_SIZE:
            if not council.judging.answers_equivalent:
                await compare_answers(council, tied_answers)
            return
        # One review of each is enough: at temperature 0 all seats get the same one.
        authors = [
            seat if seat in judges else judges[0]
            for seat in (min(answer.seats) for answer in tied_answers)
        ]
        pairs = assign_reviews(tied_answers, authors, each=1)
        # If an agent with a shell found no difference (`answers_equivalent`), reviewers with a
        # workspace each would not find one either.
        reviews = await collect_reviews(
            council,
            pairs,
            "verify",
            council.deliberation.rounds + 1,
            tools=not council.judging.answers_equivalent,
        )
        wide_window = council.setup_of("-").llm.context_tokens >= WIDE_WINDOW_TOKENS
        if wide_window and not council.judging.answers_equivalent:
            await compare_answers(council, _tied_after_reviews(tied_answers, reviews))


def _tied_after_reviews(tied: Sequence[Answer], reviews: Sequence[Review]) -> list[Answer]:
    """Return the answers that share the best review score; [] if one answer is the best, all if a
    review is missing.
    """
    scores = {review.candidate: review.score for review in reviews}
    if any(proposal.candidate not in scores for answer in tied for proposal in answer.proposals):
        return list(tied)
    means = [
        fmean([scores[proposal.candidate] for proposal in answer.proposals]) for answer in tied
    ]
    best = [
        answer
        for answer, mean in zip(tied, means, strict=True)
        if round(mean, 3) == round(max(means), 3)
    ]
    return best if len(best) > 1 else []


async def _fill_seats(council: DeliberationContext) -> None:
    """Fill the seats: all at once; one by one until an answer is proven; or, with `adaptive`, two
    seats first and one more as long as the evidence disagrees.
    """
    if council.deliberation.adaptive:
        first, is_enough = _MIN_SEATS, _answers_agree
    elif _fills_one_by_one(council):
        first, is_enough = 1, _has_complete_proof
    else:
        first, is_enough = len(council.seat_states), _answers_agree
    await _propose_all(council, council.seat_states[:first])
    for seat_state in council.seat_states[first:]:
        await _confirm_first(council)
        if is_enough(council) or not _time_left(council):
            return
        await _propose_all(council, [seat_state])


def _fills_one_by_one(council: DeliberationContext) -> bool:
    """Return True if seats are filled one after the other; never if every answer is needed."""
    llm = council.dependencies.answerers.llm
    enabled = llm.seats_in_turn == "on" or (llm.seats_in_turn == "auto" and llm.base_url is None)
    return (
        enabled
        and not (council.about_text or council.deliberation.peer_review)
        and _protocol_of(council).stops_early
    )


async def _propose_all(council: DeliberationContext, seat_states: Sequence[SeatState]) -> None:
    if not council.proposing.approaches:
        await find_approaches(
            council, 1 if _protocol_of(council).one_seat else len(council.seat_states)
        )
    tasks: list[tuple[SeatState, asyncio.Task[None]]] = []
    started_at = datetime.now(UTC)
    waiting: list[asyncio.Task[None]] = []

    async def propose_and_decide(seat_state: SeatState) -> None:
        await propose(council, seat_state)
        if await _is_decided(council):
            council.proposing.stopped_early = True
            _cancel_open_seats(tasks)
            for task in waiting:
                task.cancel()
        elif all(task.done() for task in waiting) and _starts_patience(council):
            waiting.append(
                group.create_task(
                    _cancel_late_seats(council, tasks, datetime.now(UTC) - started_at)
                )
            )
        if waiting and all(
            other_state.drafts or task.done() or other_state is seat_state
            for other_state, task in tasks
        ):
            waiting[-1].cancel()

    async with asyncio.TaskGroup() as group:
        tasks += [
            (seat_state, group.create_task(propose_and_decide(seat_state), name=seat_state.seat))
            for seat_state in seat_states
        ]


def _cancel_open_seats(tasks: Sequence[tuple[SeatState, asyncio.Task[None]]]) -> list[SeatState]:
    """Cancel the seats without a proposal and return them."""
    open_seats = [
        (seat_state, task)
        for seat_state, task in tasks
        if not seat_state.drafts and not task.done()
    ]
    for _, task in open_seats:
        task.cancel()
    return [seat_state for seat_state, _ in open_seats]


async def _cancel_late_seats(
    council: DeliberationContext,
    tasks: Sequence[tuple[SeatState, asyncio.Task[None]]],
    proof_duration: timedelta,
) -> None:
    dependencies = council.dependencies
    patience = proof_duration.total_seconds() * dependencies.rules.limits.patience
    await asyncio.sleep(max(patience, dependencies.rules.seats.patience_seconds))
    await _confirm_first(council)
    if not any(item.level is EvidenceLevel.PROVEN for item in council.judged):
        return
    stopped_seats = _cancel_open_seats(tasks)
    await asyncio.gather(
        *(task for seat_state, task in tasks if seat_state in stopped_seats), return_exceptions=True
    )
    for seat_state in stopped_seats:
        seat_state.record_end(
            SeatStatus.LATE,
            OUT_OF_PATIENCE,
            "another answer is proven, and this seat took too long after it (limits.patience)",
        )


async def _revise_all(
    council: DeliberationContext,
    seat_states: Sequence[SeatState],
    round_: int,
    reviews: Sequence[Review] = (),
) -> None:
    async with asyncio.TaskGroup() as group:
        for seat_state in seat_states:
            own_reviews = [
                review
                for review in reviews
                if review.candidate == seat_state.latest.proposal.candidate
            ]
            group.create_task(
                revise(council, seat_state, round_, own_reviews),
                name=f"{seat_state.seat}.r{round_}",
            )


async def _is_decided(council: DeliberationContext) -> bool:
    """Apply the early-stop rule of the module docstring."""
    if (
        council.evaluator is None
        or council.deliberation.peer_review
        or not _protocol_of(council).stops_early
        or all(seat_state.drafts for seat_state in council.seat_states)
    ):
        return False
    majority = len(council.seat_states) // 2 + 1
    if sum(passes_acceptance_checks(item) for item in council.judged) < majority or len(
        council.judged
    ) == len(council.seat_states):
        return False
    await _run_cross_tests(council)
    async with council.judging.lock:
        for diff in {item.proposal.diff for item in council.judged if _awaits_confirmation(item)}:
            _update_judged(council, await council.evaluator.confirm(diff, council.judged))
    votes = Counter(
        item.assessment.behaviour
        for item in council.judged
        if passes_acceptance_checks(item)
        and item.level.independent
        and all(run.passed for run in item.cross)
    )
    return any(count >= majority for count in votes.values())


def _awaits_confirmation(item: Candidate) -> bool:
    return passes_acceptance_checks(item) and not item.assessment.confirmed


def _starts_patience(council: DeliberationContext) -> bool:
    """Return True if a proven candidate limits the time of the other seats."""
    if (
        not council.dependencies.rules.limits.patience
        or council.deliberation.peer_review
        or not _protocol_of(council).stops_early
    ):
        return False
    return _has_proven(council)


def _has_complete_proof(council: DeliberationContext) -> bool:
    """Return True if a proven candidate leaves no test failing besides those it fixed. A partial
    fix is no reason to skip the other seats.
    """
    return any(
        passes_acceptance_checks(item) and item.assessment.confirmed and is_done(item.assessment)
        for item in council.judged
    )


def _has_proven(council: DeliberationContext) -> bool:
    return any(passes_acceptance_checks(item) and item.proven for item in council.judged)


async def _has_solution(council: DeliberationContext) -> bool:
    """Return True if a candidate passes the acceptance checks and leaves nothing of the task
    failing.
    """
    await _confirm_first(council)
    return any(solves(item) for item in council.judged)


def _answers_agree(council: DeliberationContext) -> bool:
    """Return True if every seat so far proposed, and all proposals pass the acceptance checks and
    behave the same.
    """
    latest = [seat_state.latest for seat_state in council.proposers]
    active_seats = [
        seat_state
        for seat_state in council.seat_states
        if seat_state.status is not SeatStatus.UNSTARTED
    ]
    if council.about_text:
        return len({item.proposal.content for item in latest}) == 1 and len(latest) == len(
            active_seats
        )
    behaviours = {item.assessment.behaviour for item in latest}
    return (
        len(latest) == len(active_seats)
        and len(behaviours) == 1
        and all(solves(item) for item in latest)
    )


def _time_left(council: DeliberationContext) -> bool:
    return datetime.now(UTC) < council.deadlines.work


async def _run_cross_tests(council: DeliberationContext) -> None:
    if council.evaluator is None:
        return
    async with council.judging.lock:  # several seats may end at the same time
        _update_judged(council, await excuse_superseded(council))
        contradicting = await find_contradicting_seats(council)
        _update_judged(
            council, await council.evaluator.run_cross_tests(council.judged, contradicting)
        )


def _update_judged(council: DeliberationContext, judged: Sequence[Candidate]) -> None:
    """Replace the judged proposals of all seats by newer versions of them."""
    by_candidate = {item.proposal.candidate: item for item in judged}
    for seat_state in council.proposers:
        seat_state.judged = [
            by_candidate.get(item.proposal.candidate, item) for item in seat_state.judged
        ]


async def _review_by_peers(council: DeliberationContext) -> None:
    """Let all seats review: if requested, and always about text, which has no other evidence."""
    is_requested = council.deliberation.peer_review
    if not (council.about_text or is_requested):
        return
    distinct_answers = group_answers(item.proposal for item in council.judged)
    if len(distinct_answers) < _MIN_SEATS and not is_requested:
        return
    if council.about_text and council.ledger.used_up:
        # One report says so. Reviews of text are no evidence that a ranking could miss.
        await publish_report(
            council, FINAL_REVIEWS, "final reviews: none, because the budget is used up"
        )
        return
    await collect_reviews(
        council,
        assign_reviews(distinct_answers, _list_reviewers(council)),
        "critique",
        council.deliberation.rounds + 1,
    )


def _seat_names(seat_states: Sequence[SeatState]) -> list[str]:
    return [seat_state.seat for seat_state in seat_states]


def _list_reviewers(council: DeliberationContext) -> list[str]:
    """Return the seats that started and were not stopped."""
    unavailable = {SeatStatus.UNSTARTED, SeatStatus.CANCELLED, SeatStatus.LATE}
    return [
        seat_state.seat
        for seat_state in council.seat_states
        if seat_state.status not in unavailable
    ]


def _with_all_authors(council: DeliberationContext, tied: Sequence[Answer]) -> tuple[Answer, ...]:
    """Return the same answers with every seat that gave them: none of these may review it."""
    texts = {answer.text for answer in tied}
    return tuple(
        answer
        for answer in group_answers(item.proposal for item in council.judged)
        if answer.text in texts
    )
