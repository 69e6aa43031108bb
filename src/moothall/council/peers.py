"""Holding reviews: who was assigned asks the model, and says what came of it. And asking for inputs where nothing tells answers apart."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from moothall.council import prompts
from moothall.council.assembly import Council
from moothall.council.recheck import facts_text
from moothall.council.reply import MalformedReplyError, inputs_schema, read_inputs, read_review, review_schema
from moothall.council.reviews import Answer, review_of
from moothall.council.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.domain.chat import ChatRequest, Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import digest
from moothall.domain.proposal import Review
from moothall.errors import BusUnavailable, MoothallError

_TRIES = 2
_TOKENS = 400
_INPUTS, _SHOWN = 8, 4  # calls that are asked for, and answers that are shown for that


async def hold_reviews(council: Council, pairs: Sequence[tuple[str, Answer]], phase: str, round_: int) -> list[Review]:
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


async def _one_review(council: Council, reviewer: str, answer: Answer, step: str) -> list[Review]:
    wanted = prompts.criteria(council.d.constraints)
    llm = council.parts.llm
    facts = next(
        (
            facts_text(item, council.prepared.runs)
            for item in council.judged
            if council.prepared and item.proposal == answer.proposals[0]
        ),
        "",
    )
    room = int(llm.context_tokens * CHARS_PER_TOKEN / 5)
    shown = readable_diff(answer.text) if council.prepared else answer.text
    messages = prompts.review_prompt(
        council.system,
        council.shared,
        clip(shown, room),
        evidence=clip(facts, room // 3),
        wanted=wanted,
        mode=council.mode,
        role=council.d.reviewer,
    )
    for attempt in range(1, _TRIES + 1):
        request = ChatRequest(
            call_id=f"{council.d.task_id}/{step}.{attempt}",
            messages=messages,
            max_tokens=min(_TOKENS, llm.max_tokens),
            deadline=council.until,
            schema=review_schema(len(wanted)) if council.mode == "json" else None,
            temperature=0.0 if "/verify/" in step else council.warmth(reviewer),
            seed=int(digest(str(council.d.seed), step, str(attempt))[:7], 16),
            scored=True,
        )
        try:
            reply = await council.model.ask(request)
            read = read_review(reply, len(wanted))
        except BusUnavailable:
            raise
        except MoothallError:
            return []
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


async def write_inputs(council: Council) -> tuple[str, ...]:
    """Return code that calls what the answers make differently; () where nothing is undecided, too little of the budget is left
    (`limits.inputs_tokens`) or the model says nothing of use. A council whose model is asked for one function alone is lost in this.
    """
    wanted, left = council.parts.limits.inputs_tokens, council.ledger.remaining.tokens
    if council.bench is None or council.function is not None or not wanted or (left and left < wanted):
        return ()
    proposals, names = await council.bench.undecided(council.judged)
    if not names:
        return ()
    room = int(council.parts.llm.context_tokens * CHARS_PER_TOKEN / 5)
    shown = [clip(readable_diff(item.diff), room // min(len(proposals), _SHOWN)) for item in proposals[:_SHOWN]]
    step = f"-/verify/{council.d.rounds + 1}.0"
    request = ChatRequest(
        call_id=f"{council.d.task_id}/{step}",
        messages=prompts.inputs_prompt(council.system, council.shared, shown, names, _INPUTS),
        max_tokens=min(_TOKENS, council.parts.llm.max_tokens),
        deadline=council.until,
        schema=inputs_schema(_INPUTS) if council.mode == "json" else None,
        seed=int(digest(str(council.d.seed), step)[:7], 16),
    )
    try:
        return read_inputs(await council.model.ask(request), _INPUTS)
    except BusUnavailable:
        raise
    except (MalformedReplyError, MoothallError):
        return ()
