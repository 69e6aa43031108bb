"""The report of an evaluation: one JSON document, and the tables that a terminal shows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from moothall import __version__
from moothall.domain.codec import dump, load
from moothall.domain.evidence import EvidenceLevel
from moothall.evaluate.figures import Summary, summaries
from moothall.evaluate.tasks import Task, count_cases

LEVELS = tuple(level.value for level in EvidenceLevel)
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A candidate of a deliberation, and whether the hidden tests pass on it."""

    seat: str
    rank: int
    level: str
    solved: bool
    failing: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One task under one configuration.

    solved: all hidden tests pass on the winner. failing: some that do not. state: how the
    deliberation
    ended. level: the winner's level of evidence. digest: of settings and options.
    """

    task: str
    config: str
    solved: bool
    state: str
    winner: str
    level: str
    tokens: int
    calls: int
    cost_usd: float
    seconds: float
    undecided: bool = False
    failing: tuple[str, ...] = ()
    candidates: tuple[Answer, ...] = ()
    agents: int = 0
    error: str = ""
    deliberation: str = ""
    digest: str = ""
    moothall: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A task with the number of hidden cases that failed before, and of `kept` cases that have to
    pass still.
    """

    id: str
    repository: str
    commit: str
    parent: str
    text: str
    hidden: int
    kept: int


@dataclass(frozen=True, slots=True)
class Report:
    """An evaluation: `moothall` is the version that wrote the report."""

    folder: str
    moothall: str
    configurations: tuple[Summary, ...]
    tasks: tuple[TaskFigures, ...]
    results: tuple[Result, ...]
    version: Literal[1] = 1


def make_report(place: Path, tasks: Sequence[Task], rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the whole report. Results of unknown tasks are left out.

    Raises `InvalidRequest` for a row that is no result.
    """
    known = {task.id for task in tasks}
    counted = tuple(
        load(Result, row) for row in rows if row.get("task") in known and not row.get("broken")
    )
    return Report(
        folder=str(place),
        moothall=__version__,
        configurations=tuple(summaries([dump(row) for row in counted])),
        tasks=tuple(
            TaskFigures(
                id=task.id,
                repository=task.repository,
                commit=task.commit,
                parent=task.parent,
                text=task.text,
                hidden=count_cases(task.cases),
                kept=count_cases(task.kept),
            )
            for task in tasks
        ),
        results=counted,
    )


def share_words(share: Mapping[str, Any]) -> str:
    """Return `2 of 3 (67 %, 21 to 94)`, or a dash if the total is 0."""
    if not share["total"]:
        return "-"
    return (
        f"{share['count']} of {share['total']} ({100 * share['share']:.0f} %, "
        f"{100 * share['low']:.0f} to {100 * share['high']:.0f})"
    )


def mean_words(mean: Mapping[str, Any], digits: int = 0) -> str:
    """Return `1,200 (900 to 1,500)`."""
    places = digits if mean["value"] else 0
    value, low, high = (f"{mean[name]:,.{places}f}" for name in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def tables(report: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Rows]]:
    """Yield the tables of a report: title, heads, rows."""
    configurations = report["configurations"]

    def row(name: str, words: Callable[[Any], str]) -> tuple[str, ...]:
        return (name, *(words(item) for item in configurations))

    yield (
        f"{len(report['tasks'])} tasks; shares and means with intervals of 95 %",
        ("", *(item["config"] for item in configurations)),
        [
            row("solved", lambda item: share_words(item["solved"])),
            row("right answer among candidates", lambda item: share_words(item["possible"])),
            *(
                row(
                    f"precision of {level.replace('_', '-')}",
                    lambda item, level=level: share_words(item["precision"][level]),  # type: ignore[misc]
                )
                for level in LEVELS
            ),
            row(
                "reproduced and wrong",
                lambda item: str(item["wrong"][EvidenceLevel.REPRODUCED.value]),
            ),
            row("undecided", lambda item: str(item["undecided"])),
            row("no winner", lambda item: str(item["none"])),
            row("tokens", lambda item: mean_words(item["tokens"])),
            row("US dollars", lambda item: mean_words(item["cost_usd"], 4)),
            row("seconds", lambda item: mean_words(item["seconds"])),
        ],
    )
    yield (
        "Tasks: hidden tests that must pass, and which configuration solved them",
        ("task", "hidden tests", *(item["config"] for item in configurations)),
        [
            (
                task["id"],
                str(task["hidden"]),
                *(_sign(report["results"], task["id"], item["config"]) for item in configurations),
            )
            for task in report["tasks"]
        ],
    )


def _sign(rows: Sequence[Mapping[str, Any]], task: str, config: str) -> str:
    row = next((row for row in rows if (row["task"], row["config"]) == (task, config)), None)
    if row is None:
        return "not run"
    if row["solved"]:
        return f"solved, {row['level'].replace('_', '-')}"
    return f"wrong, {row['level'].replace('_', '-')}" if row["winner"] else "no winner"
