"""The protocols: the same steps in different orders.

single             propose
ask                propose; where nothing is changed, what is said at the end is the answer, and is
judged as text
vote               propose · cross-tests
debate             propose · (every seat reviews another's, authors revise), in rounds · cross-tests
tests_then_verify  propose · (revise on execution evidence where no candidate is good), in rounds
                   · cross-tests · reviews on ties
tournament         propose · cross-tests · (a second wave of proposals, on notes about the first,
where no candidate is
                   reproduced or proven · cross-tests) · comparison by summaries, in small groups,
                   on ties

Every protocol that reviews ties compares in groups, too, if more answers are level than one
comparison takes, or if reviews leave a tie and the model's window is wide enough. Before a revision
an author reads summaries of the other answers and of the tests that pass on them.
`limits.second_wave` adds a second wave to other protocols, or turns it off.

Peer review adds reviews from all in any of them. About text there are no checks: all distinct
answers are reviewed.
A seat that fails, is late, is cancelled or never starts is an outcome. At the end every seat has
one `seat.finished`.

The test writer (`judging/test_writer.py`) works after proposals and revisions, and before a second
wave, if no candidate is proven and through the gates; never in `ask` or about text. If different
answers are level then, and the protocol reviews ties, the tie-breaker (`judging/tie_breaker.py`)
compares them before they are reviewed.

Early stop: once a strict majority of all seats has proposed patches that pass the gates, are
reproduced or proven, and behave the same under all tests, those of the seats included, the seats
without a proposal are cancelled. A later patch could win only by tests of its own author that the
majority's patches fail. Where reviews were asked for there is no early stop.

In turn: with the embedded model, which is no faster for several seats at once, they are filled one
after the other until a candidate is proven and through the gates, and nothing is red beside what it
mended (`llm.seats_in_turn`).

Patience: once a candidate is proven and through the gates, the other seats get the time that it
took once more (`limits.patience`, at least `limits.patience_seconds`); then those without a
proposal are late. A seat that goes in circles must not hold up an answer that stands.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from statistics import fmean

from moothall.concurrency import leaves, seconds_until
from moothall.deliberation.context import DeliberationContext, Dependencies, SeatState, convene
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.agents import publish_report
from moothall.deliberation.judging.claims import check_claims, is_done_already
from moothall.deliberation.judging.comparison import GROUP_SIZE, compare_answers
from moothall.deliberation.judging.evaluator import EvaluatedProposal
from moothall.deliberation.judging.reviews import (
    WIDE_WINDOW_TOKENS,
    Answer,
    assign_reviews,
    collect_reviews,
    find_contradicting_seats,
    group_answers,
)
from moothall.deliberation.judging.superseded import excuse_superseded
from moothall.deliberation.judging.test_writer import IndependentTests
from moothall.deliberation.judging.tie_breaker import break_tie, find_tie
from moothall.deliberation.recorded_model import Recording
from moothall.deliberation.rival_notes import distil_notes
from moothall.deliberation.seats import find_approaches, outcome_of, propose, propose_again, revise
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.proposal import OUT_OF_PATIENCE, Review, SeatOutcome, SeatStatus
from moothall.domain.protocol import PROTOCOLS, Protocol
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.errors import BusUnavailable, MoothallError
from moothall.ranking import find_ties, is_done

__all__ = ["HOST_STOPS", "Dependencies", "deliberate"]

HOST_STOPS = "host stops"
"""Cancel a deliberation's task with this message when the work goes on elsewhere: then no seat is
reported as finished.
"""

SECOND_WAVE = "second-wave"
"""The name that a second wave is reported under."""
_FIRST_SEATS = 2
_CLOSE_SECONDS = 5.0


async def deliberate(
    d: Deliberation, prepared: Prepared | None, parts: Dependencies, recording: Recording
) -> None:
    """Run a deliberation; everything that it comes to is in the events it publishes.

    `prepared` is None about text. Raises `BusUnavailable` where facts could not be published (take
    it up
    again with a recording).
    """
    try:
        council = await convene(d, prepared, parts, recording)
    except BusUnavailable:
        raise
    except MoothallError as error:
        await _nobody_sits(EventWriter(parts.log, d, parts.source, recording.known), error)
        return
    await council.facts.say(
        EventType.DELIBERATION_STARTED,
        "",
        seats=list(d.seats),
        protocol=d.protocol,
        reply_mode=council.reply_mode,
        models=council.models,
        limits=council.limits,
    )
    try:
        await _sit(council)
    except asyncio.CancelledError as error:
        if HOST_STOPS not in error.args:
            # Bounded: whoever cancels waits for this. What is not said now, the deliberation's own
            # deadline says.
            with suppress(TimeoutError, BusUnavailable):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await _finish(council)
        raise
    except ExceptionGroup as group:
        if unavailable := group.subgroup(BusUnavailable):
            raise next(leaves(unavailable)) from group
        ours, bugs = group.split(MoothallError)
        if ours is None or bugs is not None:
            raise
        first = next(
            leaves(ours)
        )  # such as a disk that is full or a sandbox that does not start any more
        for seat_state in council.sittings:
            seat_state.end(SeatStatus.FAILED, first.code, first.message)
    await _finish(council)


async def _sit(council: DeliberationContext) -> None:
    """Run the protocol until its end or the deadline; a seat that was not done by then is late."""
    seconds = seconds_until(council.until)
    try:
        async with asyncio.timeout(max(seconds, 0)) as limit:
            await _run(council)
    except TimeoutError:
        if not limit.expired():
            raise
        for seat_state in council.sittings:
            if seat_state.status is SeatStatus.CANCELLED:
                seat_state.end(
                    SeatStatus.LATE, "DEADLINE_EXCEEDED", "the seat was not done in time"
                )


async def _nobody_sits(facts: EventWriter, error: MoothallError) -> None:
    """What no seat can do without, such as the model, is not there: every seat failed before it
    began.
    """
    for seat in facts.d.seats:
        outcome = SeatOutcome(seat, SeatStatus.FAILED, error.code, error.message)
        await facts.say(EventType.SEAT_FINISHED, seat, seat=seat, outcome=dump(outcome))
    await facts.flush()


async def _finish(council: DeliberationContext) -> None:
    await council.model.close()  # before the end is on record: what follows it may need the rest
    # A seat's end lets its deliberation be decided: it is never on record before what was said
    # earlier (`Log.post`).
    for seat_state in council.sittings:
        if seat_state.status is SeatStatus.CANCELLED and council.stopped_early:
            seat_state.end(
                SeatStatus.CANCELLED,
                "CANCELLED",
                "nothing that it could have proposed would have won",
            )
        await council.facts.say(
            EventType.SEAT_FINISHED,
            seat_state.seat,
            seat=seat_state.seat,
            outcome=dump(outcome_of(council, seat_state)),
        )
    await council.facts.flush()


def _protocol(council: DeliberationContext) -> Protocol:
    return PROTOCOLS[council.d.protocol]


async def _run(council: DeliberationContext) -> None:
    """Take the steps of the council's protocol."""
    protocol, tests = _protocol(council), IndependentTests(council)
    if protocol.one_seat:
        await _propose_all(council, council.sittings[:1])
        _note(council, await excuse_superseded(council))
    else:
        await _take_seats(council)
        await _revise_in_rounds(council, protocol)
        await _cross_tests(council)
        _note(council, await check_claims(council))
        await _second_wave(council, protocol, tests)
    _note(council, await check_claims(council))
    _note(council, await tests.apply(published=True))
    if protocol.reviews_ties:
        if tied := find_tie(council):
            _note(council, await break_tie(council, tied))
        await _review_ties(council)
    await _judge_by_peers(council)


async def _revise_in_rounds(council: DeliberationContext, protocol: Protocol) -> None:
    for round_ in range(1, council.d.rounds + 1):
        if not _time_left(council):
            return
        if protocol.revises_on:
            await _cross_tests(council)  # its results are in what authors read of the other answers
        if protocol.revises_on == "reviews" and len(council.proposers) >= _FIRST_SEATS:
            given = group_answers(seat_state.latest.proposal for seat_state in council.proposers)
            found = await collect_reviews(
                council,
                assign_reviews(given, _seats(council.proposers), each=1),
                "critique",
                round_,
            )
            await _revise_all(council, council.proposers, round_, found)
        elif protocol.revises_on == "evidence" and not council.about_text and not _good(council):
            # One that went in circles to the end has seen all this, and was none the wiser.
            failed = [
                seat_state
                for seat_state in council.proposers
                if not seat_state.latest.solves and not seat_state.circles
            ]
            await _revise_all(council, failed, round_)


async def _second_wave(
    council: DeliberationContext, protocol: Protocol, tests: IndependentTests
) -> None:
    """Let all seats propose once more, on notes about the first proposals, if none of these is
    reproduced or proven.
    """
    setting = council.parts.limits.second_wave
    wanted = setting == "on" or (setting == "auto" and protocol.second_wave)
    if not wanted or council.about_text or not _time_left(council) or council.ledger.used_up:
        return
    if is_done_already(council):
        return
    _note(council, await tests.apply(published=False))
    if any(item.passes and item.candidate.level.independent for item in council.judged):
        return
    wave = council.d.rounds + 1
    council.notes = await distil_notes(council, wave)
    council.wave = wave
    await publish_report(
        council,
        SECOND_WAVE,
        "second wave: no answer is reproduced or proven, so all seats begin anew with notes",
    )
    async with asyncio.TaskGroup() as group:
        for seat_state in council.sittings:
            group.create_task(propose_again(council, seat_state), name=f"{seat_state.seat}.w{wave}")
    await _cross_tests(council)


async def _review_ties(council: DeliberationContext) -> None:
    tied = find_ties([item.candidate for item in council.judged])
    # Who is asked for one function, as it is lost in longer prompts, is no judge of two answers.
    judges = [seat for seat in council.d.seats if council.setup_of(seat).function is None]
    if tied and judges and not (council.about_text or council.d.peer_review):
        given = _with_twins(council, group_answers(candidate.proposal for candidate in tied))
        if _protocol(council).compares or len(given) > GROUP_SIZE:
            await compare_answers(council, given)
            return
        # One review of each, all at temperature 0: the model judges them alike, whoever asks.
        authors = [
            seat if seat in judges else judges[0]
            for seat in (min(answer.seats) for answer in given)
        ]
        pairs = assign_reviews(given, authors, each=1)
        # With `council.same` an agent with a shell has found no difference; a workspace for each
        # reviewer finds none either.
        found = await collect_reviews(
            council, pairs, "verify", council.d.rounds + 1, tools=not council.same
        )
        if council.setup_of("-").llm.context_tokens >= WIDE_WINDOW_TOKENS:
            await compare_answers(council, _level_after(given, found))


def _level_after(given: Sequence[Answer], found: Sequence[Review]) -> list[Answer]:
    """Return the answers that share the best review, or all if a review is missing; [] if one has
    the best alone.
    """
    scores = {review.candidate: review.score for review in found}
    if any(one.candidate not in scores for answer in given for one in answer.proposals):
        return list(given)
    means = [fmean([scores[one.candidate] for one in answer.proposals]) for answer in given]
    best = [
        answer
        for answer, mean in zip(given, means, strict=True)
        if round(mean, 3) == round(max(means), 3)
    ]
    return best if len(best) > 1 else []


async def _take_seats(council: DeliberationContext) -> None:
    """Fill the seats: all at once; in turn until an answer is proven; or under `adaptive` two and
    then one more while the evidence disagrees.
    """
    if council.d.adaptive:
        first, enough = _FIRST_SEATS, _seats_agree
    elif _in_turn(council):
        first, enough = 1, _leaves_nothing_red
    else:
        first, enough = len(council.sittings), _seats_agree
    await _propose_all(council, council.sittings[:first])
    for seat_state in council.sittings[first:]:
        if enough(council) or not _time_left(council):
            return
        await _propose_all(council, [seat_state])


def _in_turn(council: DeliberationContext) -> bool:
    """Whether seats are filled one after the other: as little as `patience` where every answer is
    to be seen.
    """
    llm = council.parts.llm
    wanted = llm.seats_in_turn == "on" or (llm.seats_in_turn == "auto" and llm.base_url is None)
    return (
        wanted
        and not (council.about_text or council.d.peer_review)
        and _protocol(council).stops_early
    )


async def _propose_all(council: DeliberationContext, sittings: Sequence[SeatState]) -> None:
    if not council.approaches:
        await find_approaches(council, 1 if _protocol(council).one_seat else len(council.sittings))
    tasks: list[tuple[SeatState, asyncio.Task[None]]] = []
    started = datetime.now(UTC)
    waiting: list[asyncio.Task[None]] = []

    async def sit(seat_state: SeatState) -> None:
        await propose(council, seat_state)
        if await _is_decided(council):
            council.stopped_early = True
            _unseat(tasks)
            for task in waiting:
                task.cancel()
        elif not waiting and _has_proven(council):
            waiting.append(
                group.create_task(_lose_patience(council, tasks, datetime.now(UTC) - started))
            )
        if waiting and all(
            other.drafts or task.done() or other is seat_state for other, task in tasks
        ):
            waiting[0].cancel()

    async with asyncio.TaskGroup() as group:
        tasks += [
            (seat_state, group.create_task(sit(seat_state), name=seat_state.seat))
            for seat_state in sittings
        ]


def _unseat(tasks: Sequence[tuple[SeatState, asyncio.Task[None]]]) -> list[SeatState]:
    """Stop the seats that have proposed nothing yet and return them."""
    stopped = [
        (seat_state, task)
        for seat_state, task in tasks
        if not seat_state.drafts and not task.done()
    ]
    for _, task in stopped:
        task.cancel()
    return [seat_state for seat_state, _ in stopped]


async def _lose_patience(
    council: DeliberationContext,
    tasks: Sequence[tuple[SeatState, asyncio.Task[None]]],
    took: timedelta,
) -> None:
    limits = council.parts.limits
    await asyncio.sleep(max(took.total_seconds() * limits.patience, limits.patience_seconds))
    stopped = _unseat(tasks)
    await asyncio.gather(
        *(task for seat_state, task in tasks if seat_state in stopped), return_exceptions=True
    )
    for seat_state in stopped:
        seat_state.end(
            SeatStatus.LATE,
            OUT_OF_PATIENCE,
            "a proven answer was there and this seat took more than as long again",
        )


async def _revise_all(
    council: DeliberationContext,
    sittings: Sequence[SeatState],
    round_: int,
    found: Sequence[Review] = (),
) -> None:
    async with asyncio.TaskGroup() as group:
        for seat_state in sittings:
            own = [
                review
                for review in found
                if review.candidate == seat_state.latest.proposal.candidate
            ]
            group.create_task(
                revise(council, seat_state, round_, own), name=f"{seat_state.seat}.r{round_}"
            )


async def _is_decided(council: DeliberationContext) -> bool:
    """The rule of early stop, as in the module's text."""
    if council.evaluator is None or council.d.peer_review or not _protocol(council).stops_early:
        return False
    enough = len(council.sittings) // 2 + 1
    if sum(item.passes for item in council.judged) < enough or len(council.judged) == len(
        council.sittings
    ):
        return False
    await _cross_tests(council)
    good = Counter(
        item.assessment.behaviour
        for item in council.judged
        if item.passes
        and item.candidate.level.independent
        and all(run.passed for run in item.cross)
    )
    return any(count >= enough for count in good.values())


def _has_proven(council: DeliberationContext) -> bool:
    """Whether the others are waited for with patience only."""
    if (
        not council.parts.limits.patience
        or council.d.peer_review
        or not _protocol(council).stops_early
    ):
        return False
    return _proven(council)


def _leaves_nothing_red(council: DeliberationContext) -> bool:
    """Whether a proven candidate leaves nothing red beside what it mended: one that is half right
    is no reason to ask nobody else.
    """
    return any(item.passes and is_done(item.assessment) for item in council.judged)


def _proven(council: DeliberationContext) -> bool:
    return any(item.passes and item.candidate.proven for item in council.judged)


def _good(council: DeliberationContext) -> bool:
    """Whether a candidate passes the gates and leaves nothing of the task failing: there is nothing
    to repair.
    """
    return any(item.solves for item in council.judged)


def _seats_agree(council: DeliberationContext) -> bool:
    """Whether the evidence agrees: every seat so far proposed, and all are through the gates and
    behave alike.
    """
    latest = [seat_state.latest for seat_state in council.proposers]
    started = [
        seat_state
        for seat_state in council.sittings
        if seat_state.status is not SeatStatus.UNSTARTED
    ]
    if council.about_text:
        return len({item.proposal.content for item in latest}) == 1 and len(latest) == len(started)
    alike = {item.assessment.behaviour for item in latest}
    return len(latest) == len(started) and len(alike) == 1 and all(item.solves for item in latest)


def _time_left(council: DeliberationContext) -> bool:
    return datetime.now(UTC) < council.work_until


async def _cross_tests(council: DeliberationContext) -> None:
    if council.evaluator is None:
        return
    async with council.matrix_turn:  # seats that end at the same time ask for it side by side
        _note(council, await excuse_superseded(council))
        contradicting = await find_contradicting_seats(council)
        _note(council, await council.evaluator.run_cross_tests(council.judged, contradicting))


def _note(council: DeliberationContext, judged: Sequence[EvaluatedProposal]) -> None:
    """Put what was found of the candidates in the place of what was known of them."""
    found = {item.proposal.candidate: item for item in judged}
    for seat_state in council.proposers:
        seat_state.judged = [found.get(item.proposal.candidate, item) for item in seat_state.judged]


async def _judge_by_peers(council: DeliberationContext) -> None:
    """Reviews from all: where they were asked for, and always about text, which has no other
    evidence.
    """
    if council.about_text or council.d.peer_review:
        given = group_answers(item.proposal for item in council.judged)
        if len(given) > 1 or council.d.peer_review:
            await collect_reviews(
                council,
                assign_reviews(given, _reviewers(council)),
                "critique",
                council.d.rounds + 1,
            )


def _seats(sittings: Sequence[SeatState]) -> list[str]:
    return [seat_state.seat for seat_state in sittings]


def _reviewers(council: DeliberationContext) -> list[str]:
    """Seats that began; one that was stopped early has nothing more to say."""
    quiet = {SeatStatus.UNSTARTED, SeatStatus.CANCELLED, SeatStatus.LATE}
    return [seat_state.seat for seat_state in council.sittings if seat_state.status not in quiet]


def _with_twins(council: DeliberationContext, given: Sequence[Answer]) -> tuple[Answer, ...]:
    """The same answers with every seat that gave them: none of those may review it."""
    texts = {answer.text for answer in given}
    return tuple(
        answer
        for answer in group_answers(item.proposal for item in council.judged)
        if answer.text in texts
    )
