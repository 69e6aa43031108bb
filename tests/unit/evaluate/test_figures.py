"""Shares, means and their intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.evaluate.report import Answer, Result, Seat, mean_of, past_tasks, summaries, wilson
from moothall.orchestrator.seat_choice import Attempt, TaskKind

_COUNTS = st.integers(1, 400).flatmap(
    lambda total: st.tuples(st.integers(0, total), st.just(total))
)


@given(_COUNTS)
def test_the_interval_of_a_share_contains_it_and_is_within_bounds(counts: tuple[int, int]) -> None:
    count, total = counts
    low, high = wilson(count, total)
    assert 0.0 <= low <= count / total <= high <= 1.0
    assert (low == 0.0) == (count == 0)
    assert (high == 1.0) == (count == total)


@given(_COUNTS)
def test_the_interval_moves_with_the_count_and_narrows_with_the_total(
    counts: tuple[int, int],
) -> None:
    count, total = counts
    low, high = wilson(count, total)
    if count < total:
        next_interval = wilson(count + 1, total)
        assert next_interval[0] > low
        assert next_interval[1] >= high
    wider = wilson(4 * count, 4 * total)
    assert wider[1] - wider[0] < high - low
    mirrored = wilson(total - count, total)
    assert abs(mirrored[0] - (1 - high)) < 1e-9


def test_the_interval_has_known_values() -> None:
    assert [round(bound, 4) for bound in wilson(8, 10)] == [0.4902, 0.9433]
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_the_interval_of_a_mean_contains_it_and_is_within_the_values(values: list[float]) -> None:
    mean = mean_of(values)
    slack = 1e-6 * max(values) + 1e-9
    assert min(values) - slack <= mean.low <= mean.value <= mean.high <= max(values) + slack
    assert mean == mean_of(values)


def _row(
    config: str, *, solved: bool, level: str, right: bool = False, tokens: int = 100, **fields: Any
) -> dict[str, Any]:
    winner = "agent-dev-001" if level else ""
    row = {
        "config": config,
        "task": "t",
        "solved": solved,
        "winner": winner,
        "level": level,
        "tokens": tokens,
        "cost_usd": 0.5,
    }
    return (
        row
        | {"seconds": 10.0, "undecided": False, "candidates": [{"solved": solved or right}]}
        | fields
    )


def test_the_results_of_a_configuration_are_summarised() -> None:
    rows = [
        _row("a", solved=True, level="reproduced"),
        _row("a", solved=False, level="reproduced", right=True),
        _row("a", solved=False, level="", tokens=400),
        _row("b", solved=False, level="unproven"),
    ]
    first, second = summaries(rows)
    assert (first.solved.count, first.solved.total, first.none) == (1, 3, 1)
    assert (first.possible.count, first.selected.count, first.selected.total) == (2, 1, 2)
    assert (first.precision["reproduced"].count, first.precision["reproduced"].total) == (1, 2)
    assert (first.tokens.value, first.tokens_per_solved, first.cost_per_solved) == (
        200.0,
        600.0,
        1.5,
    )
    assert (first.wrong["reproduced"], second.wrong["unproven"]) == (1, 1)
    assert (second.config, second.tokens_per_solved) == ("b", None)


def _result(task: str, config: str, *candidates: Answer, seats: tuple[Seat, ...]) -> dict[str, Any]:
    kind = TaskKind("shop", "python")
    result = Result(task, config, True, "committed", "s1", "", 1, 1, 0.0, 1.0)
    return dump(replace(result, kind=kind, seats=seats, candidates=candidates))


def test_past_results_include_other_tasks_of_all_configurations() -> None:
    """The second seat solves the task with a revision only, and the third with nothing."""
    usage = Usage(10, 0, 1, 1)
    rows = [
        _result("t", "a", seats=(Seat("s1", "", usage),)),
        _result(
            "u",
            "a",
            Answer("s1", 2, "unproven", solved=False),
            Answer("s1", 1, "unproven", solved=True, revision=1),
            seats=(Seat("s1", "", usage),),
        ),
        _result(
            "u",
            "b",
            Answer("s1", 1, "unproven", solved=True),
            seats=(Seat("s1", "deep", usage), Seat("s2", "deep", usage)),
        ),
        {"task": "u", "config": "c", "broken": True},
    ]
    (task,) = past_tasks(rows, excluded_task="t")
    assert task.kind == TaskKind("shop", "python")
    assert task.attempts == (
        Attempt("", True, False, usage),
        Attempt("deep", True, True, usage),
        Attempt("deep", False, False, usage),
    )
