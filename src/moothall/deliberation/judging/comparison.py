"""Compare many answers: a structured summary of each, small groups, and the best of each group
again until one is left.

Each group is asked about twice, the second time in the opposite order, since models favour what
stands first. What comes of it are reviews by "comparison": the order as scores from 1 (first) to 0
(last). Answers between which it does not decide have the same score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import facts_text
from moothall.deliberation.judging.reviews import Answer, review_tokens
from moothall.deliberation.prompts.comparing import (
    comparison_prompt,
    order_schema,
    read_order,
    read_summary,
    summary_prompt,
    summary_schema,
)
from moothall.deliberation.prompts.text import CHARS_PER_TOKEN, clip, readable_diff
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.proposal import Review

COMPARISON = "comparison"
"""The name of the reviewer that a comparison is told as; no seat has it."""
GROUP = 4
"""Answers that are compared at once: of more, models lose sight."""
_COMMENT_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Entry:
    """An answer and its summary."""

    answer: Answer
    summary: str


@dataclass(frozen=True, slots=True)
class _Placed:
    """Entries by place, the best first; level ones share a place. `why`: the model's reason for the
    order.
    """

    places: tuple[tuple[_Entry, ...], ...]
    why: str = ""


async def compare(council: DeliberationContext, given: Sequence[Answer]) -> list[Review]:
    """Compare answers and publish their order as reviews; [] if the model does not answer or the
    budget is used up.
    """
    if council.ledger.used_up or len(given) < 2:  # noqa: PLR2004  # one is in order already
        return []
    entries = await _summarize(council, given)
    placed = await _order(council, entries) if entries else None
    return await _publish(council, placed) if placed is not None else []


async def _summarize(council: DeliberationContext, given: Sequence[Answer]) -> list[_Entry]:
    """Return every answer with its summary; with the beginning of its text where the model gives
    none. [] if it gives none at all.
    """
    setup = council.setup_of("-")
    room = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    judged = {item.proposal.candidate: item for item in council.judged}
    round_ = council.deliberation.rounds + 1

    async def summarize(number: int, answer: Answer) -> str:
        item = judged[answer.proposals[0].candidate]
        facts = facts_text(item, council.prepared.runs) if council.prepared else ""
        shown = clip(readable_diff(answer.text) if council.prepared else answer.text, room)
        messages = summary_prompt(setup.judge_system, setup.shared, shown, clip(facts, room // 3))
        reply = await council.ask(
            f"-/verify/{round_}.summary{number}",
            messages,
            summary_schema(),
            review_tokens(setup.llm),
            temperature=0.0,
        )
        try:
            return read_summary(reply).text if reply is not None else ""
        except MalformedReplyError:
            return ""

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(summarize(number, answer)) for number, answer in enumerate(given, 1)
        ]
    summaries = [task.result() for task in tasks]
    if not any(summaries):
        return []
    rest = room // (2 * GROUP)
    return [
        _Entry(answer, summary or clip(answer.text, rest))
        for answer, summary in zip(given, summaries, strict=True)
    ]


async def _order(council: DeliberationContext, entries: Sequence[_Entry]) -> _Placed | None:
    """Return all entries by place: the best of each group are compared again, and stand before
    those that they left behind.
    """
    behind: list[tuple[_Entry, ...]] = []
    left, why, stage = list(entries), "", 0
    while len(left) > 1:
        stage += 1
        groups = [left[at :: _groups(len(left))] for at in range(_groups(len(left)))]
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(_compare_group(council, members, f"{stage}.{number}"))
                for number, members in enumerate(groups, 1)
            ]
        placed = [task.result() for task in asked]
        if all(one is None for one in placed):
            break
        best: list[_Entry] = []
        others: dict[int, list[_Entry]] = {}
        for members, one in zip(groups, placed, strict=True):
            first, *rest = one.places if one is not None else (tuple(members),)
            best += first
            why = one.why if one is not None and one.why else why
            for place, some in enumerate(rest):
                others.setdefault(place, []).extend(some)
        behind = [*(tuple(others[place]) for place in sorted(others)), *behind]
        if len(best) == len(left):
            break  # level: another round would ask the same again
        left = best
    if not behind:
        return None
    return _Placed((tuple(left), *behind), why)


def _groups(count: int) -> int:
    return -(-count // GROUP)


async def _compare_group(
    council: DeliberationContext, members: Sequence[_Entry], name: str
) -> _Placed | None:
    """Return a group by place, from two orders of presentation; None if neither was answered."""
    if len(members) == 1:
        return _Placed((tuple(members),))
    setup = council.setup_of("-")
    round_ = council.deliberation.rounds + 1

    async def ask(order: Sequence[int], turn: int) -> tuple[Mapping[int, int], str]:
        messages = comparison_prompt(
            setup.judge_system, setup.shared, [members[number].summary for number in order]
        )
        step = f"-/verify/{round_}.group{name}.{turn}"
        reply = await council.ask(
            step, messages, order_schema(len(order)), review_tokens(setup.llm), temperature=0.0
        )
        try:
            places, why = read_order(reply, len(order)) if reply is not None else ((), "")
        except MalformedReplyError:
            places, why = (), ""
        return {order[shown]: place for place, shown in enumerate(places)}, why

    straight = list(range(len(members)))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ask(order, turn))
            for turn, order in enumerate((straight, straight[::-1]), 1)
        ]
    said = [task.result() for task in tasks if task.result()[0]]
    if not said:
        return None
    means = {
        number: Fraction(sum(places[number] for places, _ in said), len(said))
        for number in straight
    }
    return _Placed(
        tuple(
            tuple(members[number] for number in straight if means[number] == mean)
            for mean in sorted(set(means.values()))
        ),
        said[0][1],
    )


async def _publish(council: DeliberationContext, placed: _Placed) -> list[Review]:
    """Say each answer's place as a review."""
    last = len(placed.places) - 1
    found = []
    for place, entries in enumerate(placed.places):
        for proposal in (proposal for entry in entries for proposal in entry.answer.proposals):
            comment = f"place {place + 1} of {last + 1} in a comparison by summaries"
            comment = (
                f"{comment}: {placed.why}"[:_COMMENT_CHARS] if placed.why and not place else comment
            )
            review = Review(
                COMPARISON,
                proposal.candidate,
                round(1 - place / last, 3) if last else 1.0,
                comment=comment,
            )
            found.append(review)
            await council.events.publish(
                EventType.SEAT_REVIEWED,
                f"{COMPARISON}/{review.candidate}/{proposal.fingerprint}",
                seat=COMPARISON,
                candidate=review.candidate,
                fingerprint=proposal.fingerprint,
                review=dump(review),
            )
    return found
