"""Protocols at equal tokens: each has the same budget for each problem, and spends of it what it
needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.quality.bare import sample
from benchmarks.quality.judge import Judge, Judgement
from benchmarks.quality.problems import Problem
from benchmarks.quality.report import solved, tokens_of
from benchmarks.report import table
from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.domain.council import DEFAULT_PROTOCOL
from moothall.ports import ChatModel

BEST_OF_N = "best-of-n"
_TEMPERATURES = (0.2, 0.6, 1.0)
_MOST_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Way:
    """How a council is asked."""

    protocol: str
    seats: int = 3
    adaptive: bool = False


COUNCILS: Mapping[str, Way] = {
    "single": Way("single", 1),
    "vote": Way("vote"),
    "debate": Way("debate"),
    "tests_then_verify": Way("tests_then_verify"),
    "adaptive": Way(DEFAULT_PROTOCOL, adaptive=True),
}
NAMES = ("single", BEST_OF_N, "vote", "debate", "tests_then_verify", "adaptive")


def named(way: str, tokens: int) -> str:
    """Return what a way is called in the results: with another budget it is another one."""
    return f"{way}@{tokens}"


async def best_of_n(
    model: ChatModel, judge: Judge, problem: Problem, *, tokens: int, seed: int
) -> dict[str, Any]:
    """Take samples of the bare model until one holds all that can be seen, or another might go over
    the budget; return the best by what can be seen, as a row.
    """
    used, best, largest, began = Usage(), ("", Judgement(-1, 0, 0, 0)), 0, time.monotonic()
    for number in range(_MOST_SAMPLES):
        if number and used.tokens + largest > tokens:
            break
        text, usage = await sample(model, problem, _TEMPERATURES[number % 3], seed + number // 3)
        used += usage
        largest = max(largest, usage.tokens)
        judgement = await judge.judge(problem, text)
        if judgement.seen > best[1].seen:
            best = text, judgement
        if judgement.seen == judgement.seen_all:
            break
    return {
        "solution": best[0],
        "usage": dump(used),
        "seconds": time.monotonic() - began,
        **asdict(best[1]),
    }


def section(rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]) -> list[str]:
    """Return the part of the page about protocols, a table for each budget that was tried; nothing
    where none was.
    """
    drawn = {problem.id for problem in problems}
    budgets: dict[int, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for row in rows:
        way, mark, tokens = str(row["way"]).partition("@")
        if mark and row["problem"] in drawn:
            budgets.setdefault(int(tokens), {}).setdefault(row["problem"], {})[way] = row
    parts = [part for tokens, found in sorted(budgets.items()) for part in _table(tokens, found)]
    return ["## Protocols at the same tokens", *parts] if parts else []


def _table(tokens: int, found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Compare the ways on the problems that all of those tried have been asked."""
    tried = [name for name in NAMES if any(name in ways for ways in found.values())]
    common = [ways for ways in found.values() if all(name in ways for name in tried)]
    if not common:
        return []
    right = {name: sum(solved(ways[name]) for ways in common) for name in tried}
    spent = {name: sum(tokens_of(ways[name]["usage"]) for ways in common) for name in tried}
    first = max(right.values())
    leads = min((name for name in tried if right[name] == first), key=lambda name: spent[name])
    lines = [
        (
            name,
            f"{right[name]} of {len(common)}",
            f"{spent[name] / len(common):,.0f}",
            f"{spent[name] / right[name]:,.0f}" if right[name] else "-",
            f"{sum(ways[name]['usage']['calls'] for ways in common) / len(common):.1f}",
            f"{math.fsum(ways[name]['seconds'] for ways in common) / len(common):.0f}",
        )
        for name in tried
    ]
    is_default = (
        "the default" if leads == DEFAULT_PROTOCOL else f"the default is {DEFAULT_PROTOCOL}"
    )
    return [
        f"At most {tokens:,} tokens a problem, on {len(common)} problems that all protocols ran:",
        table(
            (
                "way",
                "solved",
                "tokens a problem",
                "tokens a solved problem",
                "calls a problem",
                "seconds a problem",
            ),
            lines,
        ),
        f"{leads} solves the most, with the fewest tokens among equals; {is_default}.",
    ]
