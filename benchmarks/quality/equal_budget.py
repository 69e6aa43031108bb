"""Compare the protocols with the same token budget for each problem."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.quality.bare_model import sample_solution
from benchmarks.quality.judge import Judge, Judgement
from benchmarks.quality.problems import Problem
from benchmarks.quality.report import count_tokens, solved
from benchmarks.report import format_table
from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.domain.council import DEFAULT_PROTOCOL
from moothall.ports import ChatModel

BEST_OF_N = "best-of-n"
_TEMPERATURES = (0.2, 0.6, 1.0)
_MAX_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Method:
    """The options of a council."""

    protocol: str
    seats: int = 3
    adaptive: bool = False


COUNCILS: Mapping[str, Method] = {
    "single": Method("single", 1),
    "vote": Method("vote"),
    "debate": Method("debate"),
    "tests_then_verify": Method("tests_then_verify"),
    "adaptive": Method(DEFAULT_PROTOCOL, adaptive=True),
}
NAMES = ("single", BEST_OF_N, "vote", "debate", "tests_then_verify", "adaptive")


def result_name(method: str, tokens: int) -> str:
    """Return the name of a method with a budget, which identifies it in the results."""
    return f"{method}@{tokens}"


async def best_of_n(
    model: ChatModel, judge: Judge, problem: Problem, *, tokens: int, seed: int
) -> dict[str, Any]:
    """Sample the bare model until a sample passes all visible assertions, or another sample might
    exceed the budget. Return the sample that passes most visible assertions, as a row.
    """
    total, best, largest, start = Usage(), ("", Judgement(-1, 0, 0, 0)), 0, time.monotonic()
    for number in range(_MAX_SAMPLES):
        if number and total.tokens + largest > tokens:
            break
        text, usage = await sample_solution(
            model, problem, _TEMPERATURES[number % 3], seed + number // 3
        )
        total += usage
        largest = max(largest, usage.tokens)
        judgement = await judge.judge(problem, text)
        if judgement.seen > best[1].seen:
            best = text, judgement
        if judgement.seen == judgement.seen_all:
            break
    return {
        "solution": best[0],
        "usage": dump(total),
        "seconds": time.monotonic() - start,
        **asdict(best[1]),
    }


def section(rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]) -> list[str]:
    """Return the section on protocols with a table for each measured budget, or nothing."""
    problem_ids = {problem.id for problem in problems}
    budgets: dict[int, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for row in rows:
        method, separator, tokens = str(row["way"]).partition("@")
        if separator and row["problem"] in problem_ids:
            budgets.setdefault(int(tokens), {}).setdefault(row["problem"], {})[method] = row
    parts = [
        part
        for tokens, by_problem in sorted(budgets.items())
        for part in _table(tokens, by_problem)
    ]
    return ["## Protocols at the same tokens", *parts] if parts else []


def _table(tokens: int, by_problem: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Compare the measured methods on the problems that all of them ran."""
    measured = [name for name in NAMES if any(name in rows for rows in by_problem.values())]
    common = [rows for rows in by_problem.values() if all(name in rows for name in measured)]
    if not common:
        return []
    solved_counts = {name: sum(solved(rows[name]) for rows in common) for name in measured}
    token_counts = {
        name: sum(count_tokens(rows[name]["usage"]) for rows in common) for name in measured
    }
    max_solved = max(solved_counts.values())
    best = min(
        (name for name in measured if solved_counts[name] == max_solved),
        key=lambda name: token_counts[name],
    )
    table_rows = [
        (
            name,
            f"{solved_counts[name]} of {len(common)}",
            f"{token_counts[name] / len(common):,.0f}",
            f"{token_counts[name] / solved_counts[name]:,.0f}" if solved_counts[name] else "-",
            f"{sum(rows[name]['usage']['calls'] for rows in common) / len(common):.1f}",
            f"{math.fsum(rows[name]['seconds'] for rows in common) / len(common):.0f}",
        )
        for name in measured
    ]
    is_default = "the default" if best == DEFAULT_PROTOCOL else f"the default is {DEFAULT_PROTOCOL}"
    return [
        f"At most {tokens:,} tokens a problem, on {len(common)} problems that all protocols ran:",
        format_table(
            (
                "method",
                "solved",
                "tokens a problem",
                "tokens a solved problem",
                "calls a problem",
                "seconds a problem",
            ),
            table_rows,
        ),
        f"{best} solves the most, with the fewest tokens among equals; {is_default}.",
    ]
