"""Reviews: anonymous, never of one's own, in an order that is deaf to names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from moothall.concurrency import seconds_until
from moothall.config import LlmSettings
from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.agents import report
from moothall.deliberation.judging.evaluator import facts_text
from moothall.deliberation.judging.tool_reviews import (
    ReviewOrder,
    review_with_tools,
    reviews_with_tools,
)
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.reply import (
    ReadReview,
    contradiction_schema,
    read_contradiction,
    read_review,
    review_schema,
)
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CONTRADICTION, Evidence, Verdict
from moothall.domain.ids import digest, seed_of
from moothall.domain.proposal import Proposal, Review
from moothall.errors import BusUnavailable, ModelReplyInvalid, MoothallError
from moothall.ranking.gates import plain
from moothall.ranking.syntax.diffs import file_diffs

REVIEWS_A_SEAT = 3
_COMPETING = 2  # different answers, from which on tests choose between them


@dataclass(frozen=True, slots=True)
class Answer:
    """One distinct answer and the proposals that gave it."""

    text: str
    proposals: tuple[Proposal, ...]

    @property
    def seats(self) -> frozenset[str]:
        """Who gave it."""
        return frozenset(item.seat for item in self.proposals)


def answers(proposals: Iterable[Proposal]) -> tuple[Answer, ...]:
    """Group the same answers together, in the order of their hashes."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        groups.setdefault(proposal.diff or proposal.content, []).append(proposal)
    return tuple(Answer(text, tuple(groups[text])) for text in sorted(groups, key=digest))


def assign(
    given: Sequence[Answer], reviewers: Sequence[str], each: int = REVIEWS_A_SEAT
) -> tuple[tuple[str, Answer], ...]:
    """Say who reviews what: at most `each` answers a reviewer, none that the reviewer gave itself.

    The answers stand in a ring and everyone reads on from its own, so that in a council of distinct
    answers
    each is read equally often. Seats of the same answer, and those without one, begin one place
    further each.
    """
    own = {seat: index for index, answer in enumerate(given) for seat in answer.seats}
    begun: Counter[int] = Counter()
    pairs = []
    for reviewer in reviewers:
        place = own.get(reviewer, len(given) - 1)
        start = place + 1 + begun[place]
        begun[place] += 1
        ring = [given[(start + step) % len(given)] for step in range(len(given))]
        pairs += [(reviewer, answer) for answer in ring if reviewer not in answer.seats][:each]
    return tuple(pairs)


def review_of(read: ReadReview, reviewer: str, proposal: Proposal, wanted: Sequence[str]) -> Review:
    """Return the review of one proposal. A criterion whose quote the answer does not hold is not
    met.
    """
    text = proposal.diff or proposal.content
    quotes = {
        number: quote.strip()
        for number, quote in read.met
        if number not in read.unmet and _holds(text, quote)
    }
    met = tuple(f'{wanted[number - 1]} — "{quote}"' for number, quote in sorted(quotes.items()))
    unmet = tuple(criterion for number, criterion in enumerate(wanted, 1) if number not in quotes)
    return Review(reviewer, proposal.candidate, read.score / 10, met, unmet, read.comment)


def _holds(text: str, quote: str) -> bool:
    """Whether a text contains a quote, spaces and the marks of a diff aside."""
    wanted = _without_marks(quote)
    return bool(wanted) and (
        wanted in _without_marks(text)
        or " ".join(quote.split()).strip("+- ") in " ".join(text.split())
    )


def _without_marks(text: str) -> str:
    return " ".join(" ".join(line.lstrip("+- ").split()) for line in text.splitlines()).strip()


def review_text(review: Review) -> str:
    """Say it to the author, without the reviewer's name."""
    lines = [f"Score {review.score:.1f} of 1."]
    lines += [f"Met: {item}" for item in review.met]
    lines += [f"Not met: {item}" for item in review.unmet]
    return "\n".join([*lines, review.comment])


_TRIES = 2
_AT_ONCE = 4  # reviews with workspaces
_WHY = 200
_CLOSING_SECONDS, _CLOSING_SHARE = 5.0, 0.1
"""What is kept of the time, so that a review that does not come is told."""
WIDE_WINDOW = 16_000
"""The tokens of a window from which on a model may think before it judges."""
_TOKENS, _THINKING_TOKENS = 400, 4096
"""Tokens of a review from a small model, and from one with a wide window."""


async def hold_reviews(
    council: DeliberationContext,
    pairs: Sequence[tuple[str, Answer]],
    phase: str,
    round_: int,
    *,
    tools: bool = True,
) -> list[Review]:
    """Ask for these reviews side by side, each once again if there is none. What is missing then is
    published, with the reason.

    tools: whether reviewers that can use a workspace get one.
    """
    found: list[Review] = []
    numbers: Counter[str] = Counter()
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(order: _Wanted) -> None:
        found.extend(await _one_review(council, order, places if tools else None))

    async with asyncio.TaskGroup() as group:
        for reviewer, answer in pairs:
            numbers[reviewer] += 1
            group.create_task(ask(_Wanted(reviewer, answer, phase, round_, numbers[reviewer])))
    return sorted(found, key=lambda item: (item.candidate, item.reviewer))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A review that is asked for; `number` counts those of its reviewer."""

    reviewer: str
    answer: Answer
    phase: str
    round: int
    number: int

    @property
    def step(self) -> str:
        """What its calls are named after."""
        return f"{self.reviewer}/{self.phase}/{self.round}.{self.number}"


async def _one_review(
    council: DeliberationContext, order: _Wanted, places: asyncio.Semaphore | None
) -> list[Review]:
    """Return the reviews of an answer's proposals, published; [] if the reviewer gave none."""
    wanted = prompts.criteria(council.deliberation.constraints)
    why = "the budget is used up"
    corrections: list[Message] = []
    for attempt in range(1, _TRIES + 1):
        if council.ledger.used_up:
            break
        try:
            # Asked again it sees the change alone: what kept it from an end with tools may do so
            # once more.
            if attempt == 1 and places is not None and reviews_with_tools(council, order.reviewer):
                async with places:
                    read = await review_with_tools(council, _with_tools(council, order, wanted))
            else:
                read = await _ask_for_review(council, order, wanted, attempt, corrections)
        except BusUnavailable:
            raise
        except MoothallError as error:
            why = error.message
            continue
        return await _publish(council, order, read, wanted)
    for proposal in order.answer.proposals:
        name = proposal.candidate
        said = f"review of {name} by {order.reviewer} is missing: {plain(why, _WHY)}"
        await report(
            council,
            order.reviewer,
            said,
            ordinal=f"{order.step}/{name}",
            candidate=name,
            missing=True,
        )
    return []


async def _publish(
    council: DeliberationContext, order: _Wanted, read: ReadReview, wanted: Sequence[str]
) -> list[Review]:
    reviews = [
        review_of(read, order.reviewer, proposal, wanted) for proposal in order.answer.proposals
    ]
    for review, proposal in zip(reviews, order.answer.proposals, strict=True):
        await council.events.publish(
            EventType.SEAT_REVIEWED,
            f"{order.step}/{review.candidate}/{proposal.fingerprint}",
            seat=order.reviewer,
            candidate=review.candidate,
            fingerprint=proposal.fingerprint,
            review=dump(review),
        )
    return reviews


def _facts_of(council: DeliberationContext, answer: Answer) -> str:
    """Return what checks said of an answer, and the lines of it that a person should look at."""
    prepared = council.prepared
    item = next(
        (item for item in council.judged if prepared and item.proposal == answer.proposals[0]), None
    )
    if item is None or prepared is None:
        return ""
    look = item.seen.look
    return "\n".join(
        [facts_text(item, prepared.runs), *(["Lines to look at:", *look] if look else [])]
    )


def _with_tools(council: DeliberationContext, order: _Wanted, wanted: Sequence[str]) -> ReviewOrder:
    diff = order.answer.text
    return ReviewOrder(
        reviewer=order.reviewer,
        where=f"{order.phase}/{order.round}",
        number=order.number,
        diff=diff,
        exact=council.evaluator.exact(diff) if council.evaluator else diff,
        evidence=_facts_of(council, order.answer),
        wanted=wanted,
    )


async def _ask_for_review(
    council: DeliberationContext,
    order: _Wanted,
    wanted: Sequence[str],
    attempt: int,
    corrections: list[Message],
) -> ReadReview:
    """Ask for a review by what is shown alone. Raises `MoothallError`. `corrections`: what follows
    the question; what is wrong is added.
    """
    setup = council.setup_of(order.reviewer)
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    shown = readable_diff(order.answer.text) if council.prepared else order.answer.text
    messages = prompts.review_prompt(
        setup.judge_system,
        setup.shared,
        clip(shown, room),
        evidence=clip(_facts_of(council, order.answer), room // 3),
        wanted=wanted,
        mode=setup.mode,
        role=council.deliberation.reviewer,
    )
    left = seconds_until(council.deadline)
    reply = await council.ask_or_raise(
        f"{order.step}.{attempt}",
        (*messages, *corrections),
        review_schema(len(wanted)),
        review_tokens(setup.llm),
        temperature=0.0 if order.phase == "verify" else council.temperature_of(order.reviewer),
        seed=seed_of(council.deliberation.seed, order.step, attempt),
        scored=True,
        deadline=council.deadline - timedelta(seconds=min(_CLOSING_SECONDS, left * _CLOSING_SHARE)),
    )
    try:
        return read_review(reply, len(wanted))
    except MalformedReplyError as error:
        corrections += [
            Message("assistant", reply.text),
            Message("user", f"That is no review: {error}"),
        ]
        raise ModelReplyInvalid(f"its reply is no review: {error}") from error


def review_tokens(llm: LlmSettings) -> int:
    """Return how many tokens a judgement may take."""
    return min(_THINKING_TOKENS if llm.context_tokens >= WIDE_WINDOW else _TOKENS, llm.max_tokens)


async def find_contradictions(council: DeliberationContext) -> frozenset[str]:
    """Return the seats whose tests contradict the task's text, as the model says, and publish why.
    A reply that does not say is no verdict.

    Small models are not asked: what they say of tests is noise.
    """
    setup = council.setup_of("-")
    if (
        council.evaluator is None
        or setup.function is not None
        or setup.llm.context_tokens < WIDE_WINDOW
        or council.ledger.used_up
    ):
        return frozenset()
    if len({item.proposal.diff for item in council.judged if item.passes}) < _COMPETING:
        return frozenset()
    authors = [
        author
        for author in await council.evaluator.test_authors(council.judged)
        if tests_of(author)
    ]

    async def read(author: Proposal) -> None:
        step = f"-/verify/{council.deliberation.rounds + 1}.tests.{author.candidate}"
        shown = clip(
            readable_diff(tests_of(author)), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
        )
        messages = prompts.contradiction_prompt(setup.judge_system, council.task_text, shown)
        reply = await council.ask(
            step, messages, contradiction_schema(), review_tokens(setup.llm), temperature=0.0
        )
        try:
            why = read_contradiction(reply) if reply is not None else ""
        except MalformedReplyError:
            why = ""
        if why:
            found = Evidence(CONTRADICTION, Verdict.FAILED, why=f"they contradict the task: {why}")
            await council.events.publish_evidence(author, found)
        council.contradictions[author.candidate] = why

    async with asyncio.TaskGroup() as group:
        for author in authors:
            if author.candidate not in council.contradictions:
                group.create_task(read(author))
    return frozenset(author.seat for author in authors if council.contradictions[author.candidate])


def tests_of(author: Proposal) -> str:
    """Return the part of a seat's diff that is its test files; '' if its tests stand inside source
    files.
    """
    return "\n".join(
        f"+++ b/{part.path}\n{part.body}"
        for part in file_diffs(author.diff)
        if part.path in author.own_tests
    )
