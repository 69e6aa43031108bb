"""Comparison of many answers by their summaries: in small groups, then among the best of each
group, until one is left.

The model orders each group twice, the second time in the opposite order of presentation, since
models favour what comes first. The result is published as reviews by "comparison", with scores from
1 (first) to 0 (last). Tied answers have the same score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import format_check_results
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
from moothall.domain.evidence import COMPARISON
from moothall.domain.proposal import Review

GROUP_SIZE = 4
"""Answers that are compared at once. Models lose track of more."""
_COMMENT_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Entry:
    """An answer and its summary."""

    answer: Answer
    summary: str


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Entries by rank, the best first; tied entries share a rank.

    why: the model's reason for the order.
    """

    ranks: tuple[tuple[_Entry, ...], ...]
    why: str = ""


async def compare_answers(council: DeliberationContext, answers: Sequence[Answer]) -> list[Review]:
    """Compare answers and publish their order as reviews.

    Return [] if the model does not answer or the budget is used up.
    """
    if council.ledger.used_up or len(answers) < 2:  # noqa: PLR2004
        return []
    entries = await _summarize(council, answers)
    ranking = await _rank_entries(council, entries) if entries else None
    return await _publish_ranking(council, ranking) if ranking is not None else []


async def _summarize(council: DeliberationContext, answers: Sequence[Answer]) -> list[_Entry]:
    """Return the answers with their summaries; [] if the model summarizes none.

    The start of an answer replaces a missing summary.
    """
    setup = council.setup_of("-")
    max_chars = int(setup.llm.context_tokens * CHARS_PER_TOKEN / 5)
    evaluated_by_candidate = {
        evaluated.proposal.candidate: evaluated for evaluated in council.judged
    }
    round_ = council.deliberation.rounds + 1

    async def summarize(number: int, answer: Answer) -> str:
        evaluated = evaluated_by_candidate[answer.proposals[0].candidate]
        evidence = (
            format_check_results(evaluated, council.prepared.runs) if council.prepared else ""
        )
        answer_text = clip(
            readable_diff(answer.text) if council.prepared else answer.text, max_chars
        )
        messages = summary_prompt(
            setup.judge_system, setup.shared, answer_text, clip(evidence, max_chars // 3)
        )
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
            group.create_task(summarize(number, answer)) for number, answer in enumerate(answers, 1)
        ]
    summaries = [task.result() for task in tasks]
    if not any(summaries):
        return []
    excerpt_chars = max_chars // (2 * GROUP_SIZE)
    return [
        _Entry(answer, summary or clip(answer.text, excerpt_chars))
        for answer, summary in zip(answers, summaries, strict=True)
    ]


async def _rank_entries(council: DeliberationContext, entries: Sequence[_Entry]) -> _Ranking | None:
    """Return all entries by rank; None if the model ordered nothing.

    The best of each group are compared again, and rank before those that they beat.
    """
    beaten: list[tuple[_Entry, ...]] = []
    remaining, why, stage = list(entries), "", 0
    while len(remaining) > 1:
        stage += 1
        group_count = -(-len(remaining) // GROUP_SIZE)
        groups = [remaining[start::group_count] for start in range(group_count)]
        async with asyncio.TaskGroup() as tasks:
            group_tasks = [
                tasks.create_task(_compare_group(council, members, f"{stage}.{number}"))
                for number, members in enumerate(groups, 1)
            ]
        rankings = [task.result() for task in group_tasks]
        if all(ranking is None for ranking in rankings):
            break
        best: list[_Entry] = []
        others_by_rank: dict[int, list[_Entry]] = {}
        for members, ranking in zip(groups, rankings, strict=True):
            first, *rest = ranking.ranks if ranking is not None else (tuple(members),)
            best += first
            why = ranking.why if ranking is not None and ranking.why else why
            for rank, tied in enumerate(rest):
                others_by_rank.setdefault(rank, []).extend(tied)
        beaten = [*(tuple(others_by_rank[rank]) for rank in sorted(others_by_rank)), *beaten]
        if len(best) == len(remaining):
            break  # all tied: another round would ask the same question
        remaining = best
    if not beaten:
        return None
    return _Ranking((tuple(remaining), *beaten), why)


async def _compare_group(
    council: DeliberationContext, members: Sequence[_Entry], name: str
) -> _Ranking | None:
    """Rank a group from two orders of presentation; return None if the model answered neither."""
    if len(members) == 1:
        return _Ranking((tuple(members),))
    setup = council.setup_of("-")
    round_ = council.deliberation.rounds + 1

    async def request_order(order: Sequence[int], turn: int) -> tuple[Mapping[int, int], str]:
        messages = comparison_prompt(
            setup.judge_system, setup.shared, [members[index].summary for index in order]
        )
        step = f"-/verify/{round_}.group{name}.{turn}"
        reply = await council.ask(
            step, messages, order_schema(len(order)), review_tokens(setup.llm), temperature=0.0
        )
        try:
            ranks, why = read_order(reply, len(order)) if reply is not None else ((), "")
        except MalformedReplyError:
            ranks, why = (), ""
        return {order[position]: rank for rank, position in enumerate(ranks)}, why

    indices = list(range(len(members)))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(request_order(order, turn))
            for turn, order in enumerate((indices, indices[::-1]), 1)
        ]
    replies = [task.result() for task in tasks if task.result()[0]]
    if not replies:
        return None
    mean_ranks = {
        index: Fraction(sum(ranks[index] for ranks, _ in replies), len(replies))
        for index in indices
    }
    return _Ranking(
        tuple(
            tuple(members[index] for index in indices if mean_ranks[index] == mean)
            for mean in sorted(set(mean_ranks.values()))
        ),
        replies[0][1],
    )


async def _publish_ranking(council: DeliberationContext, ranking: _Ranking) -> list[Review]:
    """Publish the rank of each answer as a review."""
    last_rank = len(ranking.ranks) - 1
    reviews = []
    for rank, entries in enumerate(ranking.ranks):
        for proposal in (proposal for entry in entries for proposal in entry.answer.proposals):
            comment = f"place {rank + 1} of {last_rank + 1} in a comparison by summaries"
            comment = (
                f"{comment}: {ranking.why}"[:_COMMENT_CHARS]
                if ranking.why and not rank
                else comment
            )
            review = Review(
                COMPARISON,
                proposal.candidate,
                round(1 - rank / last_rank, 3) if last_rank else 1.0,
                comment=comment,
            )
            reviews.append(review)
            await council.events.publish(
                EventType.SEAT_REVIEWED,
                f"{COMPARISON}/{review.candidate}/{proposal.fingerprint}",
                seat=COMPARISON,
                candidate=review.candidate,
                fingerprint=proposal.fingerprint,
                review=dump(review),
            )
    council.reviews += reviews
    return reviews
