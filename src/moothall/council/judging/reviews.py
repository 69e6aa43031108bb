"""Reviews: anonymous, never of one's own, in an order that is deaf to names. And asking for inputs where nothing tells answers apart."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moothall.council.assembly import Assembly
from moothall.council.judging.recheck import facts_text
from moothall.council.prompting import prompts
from moothall.council.prompting.reply import (
    ReadReview,
    inputs_schema,
    read_inputs,
    read_review,
    review_schema,
)
from moothall.council.prompting.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.council.prompting.variants import MalformedReplyError
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import digest, seed_of
from moothall.domain.proposal import Proposal, Review

REVIEWS_A_SEAT = 3


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
_TOKENS = 400
_INPUTS, _SHOWN = 8, 4  # calls that are asked for, and answers that are shown for that


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
            min(_TOKENS, setup.llm.max_tokens),
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


async def write_inputs(council: Assembly) -> tuple[str, ...]:
    """Return code that calls what the answers make differently; () where nothing is undecided, too little of the budget is left
    (`limits.inputs_tokens`) or the model says nothing of use. A council whose model is asked for one function alone is lost in this.
    """
    wanted, left, setup = council.parts.limits.inputs_tokens, council.ledger.remaining.tokens, council.setup_of("-")
    if council.bench is None or setup.function is not None or not wanted or (left and left < wanted):
        return ()
    proposals, names = await council.bench.find_undecided(council.judged)
    if not names:
        return ()
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    shown = [clip(readable_diff(item.diff), room // min(len(proposals), _SHOWN)) for item in proposals[:_SHOWN]]
    reply = await council.ask(
        f"-/verify/{council.d.rounds + 1}.0",
        prompts.inputs_prompt(setup.judge_system, setup.shared, shown, names, _INPUTS),
        inputs_schema(_INPUTS),
        min(_TOKENS, setup.llm.max_tokens),
    )
    try:
        return read_inputs(reply, _INPUTS) if reply is not None else ()
    except MalformedReplyError:
        return ()
