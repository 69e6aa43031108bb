"""Bar charts as SVG: a stacked bar for each day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

_WIDTH, _HEIGHT = 640, 200
_LEFT, _TOP, _BOTTOM = 44, 8, 24
"""Sizes in px; the axes are in the margins."""
_MAX_TICKS, _MAX_LABELS, _BAR_SHARE, _MAX_BAR_WIDTH = 4, 8, 0.72, 40.0
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one kind by day, zero for missing days. `tone` is the CSS class of its bars."""

    name: str
    tone: str
    values: Mapping[date, float]

    @property
    def total(self) -> float:
        """The sum of all days."""
        return sum(self.values.values())


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a bar: its position in px, its CSS class, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """The bars, the ticks of the value axis as (y, label), and the days as (x, label)."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    series: tuple[Series, ...]
    days: tuple[date, ...]


def draw_bars(days: Sequence[date], series: Sequence[Series]) -> BarChart | None:
    """Return the chart of some days, None if all values are zero."""
    shown = tuple(one for one in series if one.total > 0)
    top = max((sum(one.values.get(day, 0) for one in shown) for day in days), default=0)
    if not top:
        return None
    step = _step(top)
    scale = (_HEIGHT - _TOP - _BOTTOM) / (math.ceil(top / step) * step)
    slot = (_WIDTH - _LEFT) / len(days)
    width = round(min(slot * _BAR_SHARE, _MAX_BAR_WIDTH), 1)
    bars = []
    for index, day in enumerate(days):
        x = round(_LEFT + index * slot + (slot - width) / 2, 1)
        bottom = float(_HEIGHT - _BOTTOM)
        for one in shown:
            if (value := one.values.get(day, 0)) > 0:
                height = value * scale
                bottom -= height
                title = f"{day:%d %b}: {one.name}, {value:,.0f}"
                bars.append(Bar(x, round(bottom, 1), width, round(height, 1), one.tone, title))
    every = math.ceil(len(days) / _MAX_LABELS)
    return BarChart(
        tuple(bars),
        tuple(
            (round(_HEIGHT - _BOTTOM - number * step * scale, 1), short_number(number * step))
            for number in range(math.ceil(top / step) + 1)
        ),
        tuple(
            (round(_LEFT + (index + 0.5) * slot, 1), f"{day.day} {day:%b}")
            for index, day in enumerate(days)
            if (len(days) - 1 - index) % every == 0
        ),
        shown,
        tuple(days),
    )


def _step(top: float) -> float:
    """Return the distance of ticks: 1, 2 or 5 times a power of ten, at least 1."""
    rough = max(1.0, top / _MAX_TICKS)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def short_number(value: float) -> str:
    """Return a number with a unit, such as 1.2 M."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
