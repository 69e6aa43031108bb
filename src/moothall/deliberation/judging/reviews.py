"""Reviews of answers. Superseded tests: existing tests that expect behaviour which the task asks
to change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from moothall.concurrency import seconds_until
from moothall.config import LlmSettings
from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import format_check_results
from moothall.deliberation.judging.evidence_agents import (
    ToolReviewRequest,
    publish_report,
    review_with_tools,
    reviews_with_tools,
)
from moothall.deliberation.judging.hidden import without_hidden
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import (
    ReadReview,
    contradiction_schema,
    numbered_schema,
    read_contradiction,
    read_numbered,
    read_review,
    review_schema,
)
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CONTRADICTION, HIDDEN_CASE, SUPERSEDED, Evidence, Verdict
from moothall.domain.ids import digest, seed_of
from moothall.domain.proposal import Candidate, Proposal, Review
from moothall.domain.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.errors import BusUnavailable, ModelReplyInvalid, MoothallError
from moothall.ranking import passes_acceptance_checks
from moothall.ranking.criteria import sanitize_line
from moothall.ranking.diffs import file_diffs

# Reviews of answers. They are anonymous, no seat reviews its own answer, and seat names do not
# affect the order.


REVIEWS_PER_SEAT = 3
_MIN_COMPETING_ANSWERS = 2  # with fewer, tests have nothing to choose between


@dataclass(frozen=True, slots=True)
class Answer:
    """A distinct answer and the proposals that gave it."""

    text: str
    proposals: tuple[Proposal, ...]

    @property
    def seats(self) -> frozenset[str]:
        """The seats that gave the answer."""
        return frozenset(proposal.seat for proposal in self.proposals)


def group_answers(proposals: Iterable[Proposal]) -> tuple[Answer, ...]:
    """Group proposals by answer, in the order of the answers' hashes."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        groups.setdefault(proposal.diff or proposal.content, []).append(proposal)
    return tuple(Answer(text, tuple(groups[text])) for text in sorted(groups, key=digest))


def assign_reviews(
    answers: Sequence[Answer], reviewers: Sequence[str], each: int = REVIEWS_PER_SEAT
) -> tuple[tuple[str, Answer], ...]:
    """Assign at most `each` answers to every reviewer, none of them its own.

    The answers form a ring, and each reviewer starts after its own answer. In a council of distinct
    answers each is therefore reviewed equally often. Reviewers with the same answer, or with none,
    start one position later each.
    """
    own_positions = {seat: index for index, answer in enumerate(answers) for seat in answer.seats}
    review_counts: Counter[int] = Counter()
    pairs = []
    for reviewer in reviewers:
        position = own_positions.get(reviewer, len(answers) - 1)
        start = position + 1 + review_counts[position]
        review_counts[position] += 1
        ring = [answers[(start + step) % len(answers)] for step in range(len(answers))]
        pairs += [(reviewer, answer) for answer in ring if reviewer not in answer.seats][:each]
    return tuple(pairs)


def make_review(
    reply: ReadReview, reviewer: str, proposal: Proposal, criteria: Sequence[str]
) -> Review:
    """Return the review of one proposal.

    A criterion counts as not met if its quote is not in the answer.
    """
    text = proposal.diff or proposal.content
    quotes = {
        number: quote.strip()
        for number, quote in reply.met
        if number not in reply.unmet and _contains_quote(text, quote)
    }
    met = tuple(f'{criteria[number - 1]} — "{quote}"' for number, quote in sorted(quotes.items()))
    unmet = tuple(criterion for number, criterion in enumerate(criteria, 1) if number not in quotes)
    return Review(reviewer, proposal.candidate, reply.score / 10, met, unmet, reply.comment)


def _contains_quote(text: str, quote: str) -> bool:
    """True if a text contains a quote, apart from white space and diff markers."""
    normalized_quote = _strip_diff_markers(quote)
    return bool(normalized_quote) and (
        normalized_quote in _strip_diff_markers(text)
        or " ".join(quote.split()).strip("+- ") in " ".join(text.split())
    )


def _strip_diff_markers(text: str) -> str:
    return " ".join(" ".join(line.lstrip("+- ").split()) for line in text.splitlines()).strip()


def format_review(review: Review) -> str:
    """Format a review for the author, without the reviewer's name."""
    lines = [f"Score {review.score:.1f} of 1."]
    lines += [f"Met: {criterion}" for criterion in review.met]
    lines += [f"Not met: {criterion}" for criterion in review.unmet]
    return "\n".join([*lines, review.comment])


_MAX_ATTEMPTS = 2
_MAX_CONCURRENT = 4  # reviews with workspaces
_WHY_CHARS = 200
_CLOSING_SECONDS = 5.0
_CLOSING_SHARE = 0.1
"""The reserve of the remaining time, the shorter of both, to publish that a review is missing."""
WIDE_WINDOW_TOKENS = 16_000
"""The context window, in tokens, from which on a model may think before it judges."""
_MAX_TOKENS = 400
_MAX_THINKING_TOKENS = 4096
"""The token limits of a review by a small model, and by one with a wide context window."""


async def collect_reviews(
    council: DeliberationContext,
    pairs: Sequence[tuple[str, Answer]],
    phase: str,
    round_: int,
    *,
    tools: bool = True,
) -> list[Review]:
    """Request reviews concurrently, each of them twice if the first attempt fails. Publish the
    reason of each missing review.

    tools: give a workspace to reviewers that can use one.
    """
    reviews: list[Review] = []
    numbers: Counter[str] = Counter()
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def request_review(request: _ReviewRequest) -> None:
        reviews.extend(await _request_review(council, request, slots if tools else None))

    async with asyncio.TaskGroup() as group:
        for reviewer, answer in pairs:
            numbers[reviewer] += 1
            group.create_task(
                request_review(_ReviewRequest(reviewer, answer, phase, round_, numbers[reviewer]))
            )
    return sorted(reviews, key=lambda review: (review.candidate, review.reviewer))


@dataclass(frozen=True, slots=True)
class _ReviewRequest:
    """A requested review.

    number: the number of the review among those of its reviewer.
    """

    reviewer: str
    answer: Answer
    phase: str
    round: int
    number: int

    @property
    def step(self) -> str:
        """The prefix of its call ids."""
        return f"{self.reviewer}/{self.phase}/{self.round}.{self.number}"


async def _request_review(
    council: DeliberationContext, request: _ReviewRequest, slots: asyncio.Semaphore | None
) -> list[Review]:
    """Return and publish the reviews of an answer's proposals; [] if the reviewer gives none."""
    criteria = prompts.criteria(council.deliberation.constraints)
    failure = "the budget is used up"
    corrections: list[Message] = []
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        if council.ledger.used_up:
            break
        try:
            # The second attempt has no tools, since working with them may fail again in the same
            # way.
            if attempt == 1 and slots is not None and reviews_with_tools(council, request.reviewer):
                async with slots:
                    reply = await review_with_tools(
                        council, _tool_review_request(council, request, criteria)
                    )
            else:
                reply = await _ask_for_review(council, request, criteria, attempt, corrections)
        except BusUnavailable:
            raise
        except MoothallError as error:
            failure = error.message
            continue
        return await _publish_reviews(council, request, reply, criteria)
    for proposal in request.answer.proposals:
        candidate = proposal.candidate
        reason = sanitize_line(failure, _WHY_CHARS)
        message = f"review of {candidate} by {request.reviewer} is missing: {reason}"
        council.judging.missing_reviews[candidate, request.reviewer] = message
        await publish_report(
            council,
            request.reviewer,
            message,
            ordinal=f"{request.step}/{candidate}",
            candidate=candidate,
            missing=True,
        )
    return []


async def _publish_reviews(
    council: DeliberationContext,
    request: _ReviewRequest,
    reply: ReadReview,
    criteria: Sequence[str],
) -> list[Review]:
    reviews = [
        make_review(reply, request.reviewer, proposal, criteria)
        for proposal in request.answer.proposals
    ]
    for review, proposal in zip(reviews, request.answer.proposals, strict=True):
        await council.events.publish(
            EventType.SEAT_REVIEWED,
            f"{request.step}/{review.candidate}/{proposal.fingerprint}",
            seat=request.reviewer,
            candidate=review.candidate,
            fingerprint=proposal.fingerprint,
            review=dump(review),
        )
    council.judging.reviews += reviews
    return reviews


def _format_evidence(council: DeliberationContext, answer: Answer) -> str:
    """Return the check results of an answer, and its lines that a person should look at."""
    prepared = council.prepared
    evaluated = next(
        (
            candidate
            for candidate in council.judged
            if prepared and candidate.proposal == answer.proposals[0]
        ),
        None,
    )
    if evaluated is None or prepared is None:
        return ""
    suspicious_lines = without_hidden(evaluated.assessment).look
    return "\n".join(
        [
            format_check_results(evaluated, prepared.runs),
            *(["Lines to look at:", *suspicious_lines] if suspicious_lines else []),
        ]
    )


def _tool_review_request(
    council: DeliberationContext, request: _ReviewRequest, criteria: Sequence[str]
) -> ToolReviewRequest:
    diff = request.answer.text
    return ToolReviewRequest(
        reviewer=request.reviewer,
        step=f"{request.phase}/{request.round}",
        number=request.number,
        diff=diff,
        unredacted=council.evaluator.unredact(diff) if council.evaluator else diff,
        evidence=_format_evidence(council, request.answer),
        criteria=criteria,
    )


async def _ask_for_review(
    council: DeliberationContext,
    request: _ReviewRequest,
    criteria: Sequence[str],
    attempt: int,
    corrections: list[Message],
) -> ReadReview:
    """Ask a model for a review without tools. Raises `MoothallError`.

    corrections: messages after the prompt; a malformed reply and its error are appended.
    """
    setup = council.setup_of(request.reviewer)
    max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    answer_text = readable_diff(request.answer.text) if council.prepared else request.answer.text
    messages = prompts.review_prompt(
        setup.judge_system,
        setup.shared,
        clip(answer_text, max_chars),
        evidence=clip(_format_evidence(council, request.answer), max_chars // 3),
        requirements=criteria,
        mode=setup.mode,
        role=council.deliberation.reviewer,
    )
    seconds_left = seconds_until(council.deadlines.end)
    reply = await council.request_reply_or_raise(
        f"{request.step}.{attempt}",
        (*messages, *corrections),
        review_schema(len(criteria)),
        review_tokens(setup.llm),
        temperature=0.0 if request.phase == "verify" else council.temperature_of(request.reviewer),
        seed=seed_of(council.deliberation.seed, request.step, attempt),
        scored=True,
        deadline=council.deadlines.end
        - timedelta(seconds=min(_CLOSING_SECONDS, seconds_left * _CLOSING_SHARE)),
    )
    try:
        return read_review(reply, len(criteria))
    except MalformedReplyError as error:
        corrections += [
            Message("assistant", reply.text),
            Message("user", f"That is no review: {error}"),
        ]
        raise ModelReplyInvalid(f"its reply is no review: {error}") from error


def review_tokens(llm: LlmSettings) -> int:
    """Return the token limit of a judgement."""
    return min(
        _MAX_THINKING_TOKENS if llm.context_tokens >= WIDE_WINDOW_TOKENS else _MAX_TOKENS,
        llm.max_tokens,
    )


async def find_contradicting_seats(council: DeliberationContext) -> frozenset[str]:
    """Return the seats whose tests contradict the task's text, as a model says, and publish why.

    A reply without a clear answer counts as no contradiction. Small models are not asked, since
    their judgement of tests is noise.
    """
    setup = council.setup_of("-")
    if (
        council.evaluator is None
        or setup.function is not None
        or setup.llm.context_tokens < WIDE_WINDOW_TOKENS
        or council.ledger.used_up
    ):
        return frozenset()
    if (
        len(
            {
                evaluated.proposal.diff
                for evaluated in council.judged
                if passes_acceptance_checks(evaluated)
            }
        )
        < _MIN_COMPETING_ANSWERS
    ):
        return frozenset()
    authors = [
        author
        for author in await council.evaluator.find_test_authors(council.judged)
        if extract_test_changes(author)
    ]

    async def read_tests(author: Proposal) -> None:
        step = f"-/verify/{council.deliberation.rounds + 1}.tests.{author.candidate}"
        test_changes = clip(
            readable_diff(extract_test_changes(author)),
            int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5),
        )
        messages = prompts.contradiction_prompt(setup.judge_system, council.task_text, test_changes)
        reply = await council.request_reply(
            step, messages, contradiction_schema(), review_tokens(setup.llm), temperature=0.0
        )
        try:
            contradiction = read_contradiction(reply) if reply is not None else ""
        except MalformedReplyError:
            contradiction = ""
        if contradiction:
            evidence = Evidence(
                CONTRADICTION, Verdict.FAILED, why=f"they contradict the task: {contradiction}"
            )
            await council.events.publish_evidence(author, evidence)
        council.judging.contradictions[author.candidate] = contradiction

    async with asyncio.TaskGroup() as group:
        for author in authors:
            if author.candidate not in council.judging.contradictions:
                group.create_task(read_tests(author))
    return frozenset(
        author.seat for author in authors if council.judging.contradictions[author.candidate]
    )


def extract_test_changes(author: Proposal) -> str:
    """Return the part of a seat's diff that changes its test files; '' if its tests are inside
    source files.
    """
    return "\n".join(
        f"+++ b/{part.path}\n{part.body}"
        for part in file_diffs(author.diff)
        if part.path in author.own_tests
    )


# Superseded tests: existing tests that expect behaviour which the task asks to change. A correct
# answer fails them, and is not rejected for it.
#
# A test is superseded if an author has changed it, the author's version passes on the author's
# answer, and a model finds in the task's text that every correct answer fails the old version. The
# model sees the change of the tests but not of the code. It reads each author's version separately:
# a weakened version of one author says nothing about another's. A superseded test rejects no
# answer.


_MAX_REGRESSIONS = 20
"""An answer that breaks more tests is rejected without asking a model."""


async def excuse_superseded(council: DeliberationContext) -> list[Candidate]:
    """Return the candidates that break superseded tests, with the evidence for it, and publish
    this.
    """
    setup = council.setup_of("-")
    evaluator = council.evaluator
    if evaluator is None or not setup.native or setup.llm.context_tokens < WIDE_WINDOW_TOKENS:
        return []
    rejected = [
        evaluated
        for evaluated in council.judged
        if evaluated.assessment.applies
        and 0 < len(evaluated.assessment.regressions) <= _MAX_REGRESSIONS
    ]
    for evaluated in rejected:
        regressions = [
            case for case in evaluated.assessment.regressions if not case.startswith(HIDDEN_CASE)
        ]
        unread = [case for case in regressions if case not in council.judging.superseded]
        if (
            not unread
            or evaluated.proposal.candidate in council.judging.changes_read
            or council.ledger.used_up
        ):
            continue
        passing_as_changed = await evaluator.find_cases_passing_with_own_tests(
            evaluated.proposal, unread
        )
        if passing_as_changed and extract_test_changes(evaluated.proposal):
            council.judging.changes_read.add(evaluated.proposal.candidate)
            council.judging.superseded |= await _read_superseded(
                council, evaluated, passing_as_changed
            )
    excused = [await _mark_superseded(council, evaluated) for evaluated in rejected]
    return [evaluated for evaluated in excused if evaluated is not None]


async def _read_superseded(
    council: DeliberationContext, evaluated: Candidate, cases: list[str]
) -> Mapping[str, str]:
    """Return the cases that the task supersedes, each with the reason."""
    setup = council.setup_of("-")
    test_changes = clip(
        readable_diff(extract_test_changes(evaluated.proposal)),
        int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5),
    )
    reply = await council.request_reply(
        f"-/verify/{council.deliberation.rounds + 1}.superseded.{evaluated.proposal.candidate}",
        prompts.superseded_prompt(setup.judge_system, council.task_text, test_changes, cases),
        numbered_schema("superseded", _MAX_REGRESSIONS),
        review_tokens(setup.llm),
        temperature=0.0,
    )
    try:
        reasons = read_numbered(reply, "superseded", len(cases)) if reply is not None else {}
    except MalformedReplyError:
        reasons = {}
    return {case: reasons[number] for number, case in enumerate(cases, 1) if number in reasons}


async def _mark_superseded(council: DeliberationContext, evaluated: Candidate) -> Candidate | None:
    known_checks = {evidence.check for evidence in evaluated.assessment.evidence}
    cases = tuple(
        case for case in evaluated.assessment.regressions if case in council.judging.superseded
    )
    if not cases or SUPERSEDED in known_checks:
        return None
    reason = council.judging.superseded[cases[0]][:_WHY_CHARS]
    evidence = Evidence(SUPERSEDED, Verdict.PASSED, passed=len(cases), shown=cases, why=reason)
    await council.events.publish_evidence(evaluated.proposal, evidence)
    return replace(
        evaluated,
        assessment=replace(
            evaluated.assessment, evidence=(*evaluated.assessment.evidence, evidence)
        ),
    )
