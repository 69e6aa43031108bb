"""The report of an evaluation: one JSON document, and the tables that a terminal shows of it.

Figures are shares and means with intervals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from moothall import __version__
from moothall.domain.budget import Usage
from moothall.domain.codec import dump, load
from moothall.domain.evidence import EvidenceLevel
from moothall.evaluate.tasks import Task, count_cases
from moothall.orchestrator.seat_choice import Attempt, PastTask, TaskKind

_Z = 1.959963984540054  # of 95 %
_BOOTSTRAP_SAMPLES = 2000
LEVELS = tuple(level.value for level in EvidenceLevel)
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with the bounds of the Wilson interval of 95 %."""

    count: int
    total: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, with its bootstrap interval of 95 %."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one configuration.

    solved: tasks on whose winner all hidden tests pass. possible: tasks with a candidate on which
    they
    pass. selected: solved tasks among the possible ones. precision: by level, the winners on which
    all
    hidden tests pass. wrong: by level, how many winners fail one. none: tasks without a winner.
    """

    config: str
    solved: Share
    possible: Share
    selected: Share
    precision: Mapping[str, Share]
    wrong: Mapping[str, int]
    none: int
    undecided: int
    tokens: Mean
    cost_usd: Mean
    seconds: Mean
    tokens_per_solved: float | None
    cost_per_solved: float | None


def share_of(count: int, total: int) -> Share:
    """Return a share with its interval; 0 of nothing."""
    return Share(count, total, count / total if total else 0.0, *wilson(count, total))


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the Wilson score interval of 95 % of a share."""
    if total <= 0:
        return 0.0, 1.0
    share = count / total
    square = _Z * _Z
    middle = share + square / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    scale = 1 + square / total
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return (0.0 if count == 0 else max(0.0, low)), (1.0 if count == total else min(1.0, high))


def mean_of(values: Sequence[float], seed: int = 1) -> Mean:
    """Return the mean with the percentile bootstrap interval of 95 %.

    The result is the same for the same values.
    """
    if not values:
        return Mean()
    middle = fmean(values)
    if len(values) == 1:
        return Mean(middle, middle, middle)
    draw = random.Random(seed)  # noqa: S311 - the same each time
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(_BOOTSTRAP_SAMPLES))
    low, high = means[int(0.025 * _BOOTSTRAP_SAMPLES)], means[int(0.975 * _BOOTSTRAP_SAMPLES) - 1]
    return Mean(middle, min(low, middle), max(high, middle))


def summarize(config: str, rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the figures of one configuration's rows."""
    solved = sum(bool(row["solved"]) for row in rows)
    possible = [
        row for row in rows if any(item.get("solved") for item in row.get("candidates", ()))
    ]
    winners = [row for row in rows if row.get("winner")]
    precision = {
        level.value: share_of(sum(bool(row["solved"]) for row in level_rows), len(level_rows))
        for level in EvidenceLevel
        for level_rows in [[row for row in winners if row.get("level") == level.value]]
    }
    tokens, cost = [float(row["tokens"]) for row in rows], [float(row["cost_usd"]) for row in rows]
    return Summary(
        config=config,
        solved=share_of(solved, len(rows)),
        possible=share_of(len(possible), len(rows)),
        selected=share_of(sum(bool(row["solved"]) for row in possible), len(possible)),
        precision=precision,
        wrong={level: share.total - share.count for level, share in precision.items()},
        none=len(rows) - len(winners),
        undecided=sum(bool(row.get("undecided")) for row in winners),
        tokens=mean_of(tokens),
        cost_usd=mean_of(cost),
        seconds=mean_of([float(row["seconds"]) for row in rows]),
        tokens_per_solved=sum(tokens) / solved if solved else None,
        cost_per_solved=sum(cost) / solved if solved else None,
    )


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[Summary]:
    """Return the figures of each configuration, in the order of their first results."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        named.setdefault(str(row["config"]), []).append(row)
    return [summarize(name, config_rows) for name, config_rows in named.items()]


@dataclass(frozen=True, slots=True)
class Answer:
    """A candidate of a deliberation, and whether the hidden tests pass on it."""

    seat: str
    rank: int
    level: str
    solved: bool
    failing: tuple[str, ...] = ()
    why: str = ""
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat that worked until it ended by itself, the name of its model in the settings, and what
    it used.
    """

    seat: str
    model: str
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Result:
    """One task under one configuration.

    solved: all hidden tests pass on the winner. failing: some that do not. state: how the
    deliberation
    ended. level: the winner's level of evidence. digest: of settings and options. choice: why its
    models were chosen, if the configuration leaves that to results.
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
    kind: TaskKind = field(default_factory=TaskKind)
    seats: tuple[Seat, ...] = ()
    choice: str = ""

    def attempts(self) -> tuple[Attempt, ...]:
        """Return what its seats achieved, as judged by the hidden tests."""
        return tuple(
            Attempt(
                seat.model,
                any(answer.solved for answer in answers),
                any(answer.solved and not answer.revision for answer in answers),
                seat.usage,
            )
            for seat in self.seats
            for answers in [[answer for answer in self.candidates if answer.seat == seat.seat]]
        )


def past_tasks(rows: Sequence[Mapping[str, Any]], excluded_task: str) -> list[PastTask]:
    """Return the results of all tasks but one, each with the attempts of all configurations.

    Raises `InvalidRequest` for a row that is not a result.
    """
    by_task: dict[str, PastTask] = {}
    for row in rows:
        if row.get("task") != excluded_task and not row.get("broken"):
            result = load(Result, row)
            task_so_far = by_task.get(result.task, PastTask(result.kind, ()))
            by_task[result.task] = PastTask(
                result.kind, (*task_so_far.attempts, *result.attempts())
            )
    return list(by_task.values())


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

    Raises `InvalidRequest` for a row that is not a result.
    """
    task_ids = {task.id for task in tasks}
    counted_results = tuple(
        load(Result, row) for row in rows if row.get("task") in task_ids and not row.get("broken")
    )
    return Report(
        folder=str(place),
        moothall=__version__,
        configurations=tuple(summaries([dump(row) for row in counted_results])),
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
        results=counted_results,
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
                *(
                    _result_sign(report["results"], task["id"], item["config"])
                    for item in configurations
                ),
            )
            for task in report["tasks"]
        ],
    )


def _result_sign(rows: Sequence[Mapping[str, Any]], task: str, config: str) -> str:
    row = next((row for row in rows if (row["task"], row["config"]) == (task, config)), None)
    if row is None:
        return "not run"
    if row["solved"]:
        return f"solved, {row['level'].replace('_', '-')}"
    return (
        f"wrong, {row['level'].replace('_', '-')}"
        if row["winner"]
        else f"no winner ({row['state']})"
    )
