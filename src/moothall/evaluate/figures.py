"""Figures of an evaluation: shares and means with intervals. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from moothall.domain.evidence import EvidenceLevel

_Z = 1.959963984540054  # of 95 %
_DRAWS = 2000


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
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    low, high = means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS) - 1]
    return Mean(middle, min(low, middle), max(high, middle))


def summarize(config: str, rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the figures of one configuration's rows."""
    solved = sum(bool(row["solved"]) for row in rows)
    possible = [
        row for row in rows if any(item.get("solved") for item in row.get("candidates", ()))
    ]
    winners = [row for row in rows if row.get("winner")]
    precision = {
        level.value: share_of(sum(bool(row["solved"]) for row in some), len(some))
        for level in EvidenceLevel
        for some in [[row for row in winners if row.get("level") == level.value]]
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
    return [summarize(name, some) for name, some in named.items()]
