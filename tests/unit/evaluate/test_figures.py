"""Shares, means and their intervals."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.evaluate.report import mean_of, summaries, wilson

_COUNTS = st.integers(1, 400).flatmap(
    lambda total: st.tuples(st.integers(0, total), st.just(total))
)


@given(_COUNTS)
def test_the_interval_of_a_share_holds_it_and_lies_in_bounds(counts: tuple[int, int]) -> None:
    count, total = counts
    low, high = wilson(count, total)
    assert 0.0 <= low <= count / total <= high <= 1.0
    assert (low == 0.0) == (count == 0)
    assert (high == 1.0) == (count == total)


@given(_COUNTS)
def test_the_bounds_grow_with_the_count_and_close_with_the_total(counts: tuple[int, int]) -> None:
    count, total = counts
    low, high = wilson(count, total)
    if count < total:
        more = wilson(count + 1, total)
        assert more[0] > low
        assert more[1] >= high
    wider = wilson(4 * count, 4 * total)
    assert wider[1] - wider[0] < high - low
    mirrored = wilson(total - count, total)
    assert abs(mirrored[0] - (1 - high)) < 1e-9


def test_known_values_and_nothing() -> None:
    assert [round(bound, 4) for bound in wilson(8, 10)] == [0.4902, 0.9433]
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_the_interval_of_a_mean_holds_it_and_lies_among_the_values(values: list[float]) -> None:
    mean = mean_of(values)
    slack = 1e-6 * max(values) + 1e-9
    assert min(values) - slack <= mean.low <= mean.value <= mean.high <= max(values) + slack
    assert mean == mean_of(values)


def _row(
    config: str, *, solved: bool, level: str, right: bool = False, tokens: int = 100, **more: Any
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
        | more
    )


def test_a_configuration_is_summed_up() -> None:
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
