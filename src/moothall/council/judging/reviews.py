"""Reviews: anonymous, never of one's own, in an order that is deaf to names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moothall.config import LlmSettings
from moothall.council.assembly import Assembly
from moothall.council.judging.recheck import facts_text
from moothall.council.prompting import prompts
from moothall.council.prompting.reply import (
    ReadReview,
    contradiction_schema,
    read_contradiction,
    read_review,
    review_schema,
)
from moothall.council.prompting.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.council.prompting.variants import MalformedReplyError
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CONTRADICTION, Evidence, Verdict
from moothall.domain.ids import digest, seed_of
from moothall.domain.proposal import Proposal, Review
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


def assign(given: Sequence[Answer], reviewers: Sequence[str], each: int = REVIEWS_A_SEAT) -> tuple[tuple[str, Answer], ...]:
    """Say who reviews what: at most `each` answers a reviewer, none that the reviewer gave itself.

    The answers stand in a ring and everyone reads on from its own, so that in a council of distinct answers
    each is read equally often. Seats of the same answer, and those without one, begin one place further each.
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
    """Return the review of one proposal. A criterion whose quote the answer does not hold is not met."""
    text = " ".join((proposal.diff or proposal.content).split())
    quotes = {number: quote.strip() for number, quote in read.met if number not in read.unmet and _holds(text, quote)}
    met = tuple(f'{wanted[number - 1]} — "{quote}"' for number, quote in sorted(quotes.items()))
    unmet = tuple(criterion for number, criterion in enumerate(wanted, 1) if number not in quotes)
    return Review(reviewer, proposal.candidate, read.score / 10, met, unmet, read.comment)


def _holds(text: str, quote: str) -> bool:
    wanted = " ".join(quote.split()).strip("+- ")
    return bool(wanted) and wanted in text


def review_text(review: Review) -> str:
    """Say it to the author, without the reviewer's name."""
    lines = [f"Score {review.score:.1f} of 1."]
    lines += [f"Met: {item}" for item in review.met]
    lines += [f"Not met: {item}" for item in review.unmet]
    return "\n".join([*lines, review.comment])


_TRIES = 2
WIDE_WINDOW = 16_000
"""The tokens of a window from which on a model may think before it judges."""
_TOKENS, _THINKING_TOKENS = 400, 4096
"""Tokens of a review from a small model, and from one with a wide window."""


async def hold_reviews(council: Assembly, pairs: Sequence[tuple[str, Answer]], phase: str, round_: int) -> list[Review]:
    """Ask for these reviews side by side; one that fails is left out, and so are all where the budget is used up."""
    if council.ledger.used_up:
        return []
    found: list[Review] = []
    numbers: Counter[str] = Counter()

    async def ask(reviewer: str, answer: Answer, step: str) -> None:
        found.extend(await _one_review(council, reviewer, answer, f"{reviewer}/{phase}/{step}"))

    async with asyncio.TaskGroup() as group:
        for reviewer, answer in pairs:
            numbers[reviewer] += 1
            group.create_task(ask(reviewer, answer, f"{round_}.{numbers[reviewer]}"))
    return sorted(found, key=lambda item: (item.candidate, item.reviewer))


async def _one_review(council: Assembly, reviewer: str, answer: Answer, step: str) -> list[Review]:
    wanted = prompts.criteria(council.d.constraints)
    setup = council.setup_of(reviewer)
    facts = next(
        (
            facts_text(item, council.prepared.runs)
            for item in council.judged
            if council.prepared and item.proposal == answer.proposals[0]
        ),
        "",
    )
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    shown = readable_diff(answer.text) if council.prepared else answer.text
    messages = prompts.review_prompt(
        setup.judge_system,
        setup.shared,
        clip(shown, room),
        evidence=clip(facts, room // 3),
        wanted=wanted,
        mode=setup.mode,
        role=council.d.reviewer,
    )
    for attempt in range(1, _TRIES + 1):
        reply = await council.ask(
            f"{step}.{attempt}",
            messages,
            review_schema(len(wanted)),
            review_tokens(setup.llm),
            temperature=0.0 if "/verify/" in step else council.warmth(reviewer),
            seed=seed_of(council.d.seed, step, attempt),
            scored=True,
        )
        if reply is None:
            return []
        try:
            read = read_review(reply, len(wanted))
        except MalformedReplyError as error:
            messages = (*messages, Message("assistant", reply.text), Message("user", f"That is no review: {error}"))
            continue
        reviews = [review_of(read, reviewer, proposal, wanted) for proposal in answer.proposals]
        for review, proposal in zip(reviews, answer.proposals, strict=True):
            await council.facts.say(
                EventType.SEAT_REVIEWED,
                f"{step}/{review.candidate}/{proposal.fingerprint}",
                seat=reviewer,
                candidate=review.candidate,
                fingerprint=proposal.fingerprint,
                review=dump(review),
            )
        return reviews
    return []


def review_tokens(llm: LlmSettings) -> int:
    """Return how many tokens a judgement may take."""
    return min(_THINKING_TOKENS if llm.context_tokens >= WIDE_WINDOW else _TOKENS, llm.max_tokens)


async def find_contradictions(council: Assembly) -> frozenset[str]:
    """Return the seats whose tests contradict the task's text, as the model says, and publish why. A reply that does not say is no verdict.

    Small models are not asked: what they say of tests is noise.
    """
    setup = council.setup_of("-")
    if council.bench is None or setup.function is not None or setup.llm.context_tokens < WIDE_WINDOW or council.ledger.used_up:
        return frozenset()
    if len({item.proposal.diff for item in council.judged if item.passes}) < _COMPETING:
        return frozenset()
    authors = [author for author in await council.bench.test_authors(council.judged) if tests_of(author)]

    async def read(author: Proposal) -> None:
        step = f"-/verify/{council.d.rounds + 1}.tests.{author.candidate}"
        shown = clip(readable_diff(tests_of(author)), int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5))
        messages = prompts.contradiction_prompt(setup.judge_system, setup.shared, shown)
        reply = await council.ask(step, messages, contradiction_schema(), review_tokens(setup.llm), temperature=0.0)
        try:
            why = read_contradiction(reply) if reply is not None else ""
        except MalformedReplyError:
            why = ""
        if why:
            found = Evidence(CONTRADICTION, Verdict.FAILED, why=f"they contradict the task: {why}")
            await council.facts.show(author, found)
        council.contradictions[author.candidate] = why

    async with asyncio.TaskGroup() as group:
        for author in authors:
            if author.candidate not in council.contradictions:
                group.create_task(read(author))
    return frozenset(author.seat for author in authors if council.contradictions[author.candidate])


def tests_of(author: Proposal) -> str:
    """Return the part of a seat's diff that is its test files; '' if its tests stand inside source files."""
    return "\n".join(f"+++ b/{part.path}\n{part.body}" for part in file_diffs(author.diff) if part.path in author.own_tests)
