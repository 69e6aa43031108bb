"""Charts as SVG, drawn on the server: graphs of tasks, bars for each day, and the timeline of a
council.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from moothall.collector.timeline import Block, Timeline
from moothall.stories.task_history import WON, RoundTask

# Layouts of charts drawn on the server. A graph of tasks has a row for each level of dependencies.
# In the chart of a node's neighbours, nodes with a relation to it are on the left, and nodes to
# which it has one are on the right.


BOX_WIDTH, BOX_HEIGHT, _GAP, _ROW_HEIGHT = 132, 52, 16, 88
_NODE_WIDTH, _MAX_NODES, _LINE_CHARS = 320, 12, 34
"""The width of a node in px, the nodes drawn on a side, and the characters of a node's line."""


@dataclass(frozen=True, slots=True)
class TaskBox:
    """A task with its position; `tone` is won, lost or open."""

    x: int
    y: int
    step: RoundTask
    tone: str


@dataclass(frozen=True, slots=True)
class FlowChart:
    """Boxes of `BOX_WIDTH` by `BOX_HEIGHT`, arrows as SVG paths, and the total size; in px."""

    width: int
    height: int
    boxes: tuple[TaskBox, ...]
    arrows: tuple[str, ...]


def draw(steps: Sequence[RoundTask]) -> FlowChart:
    """Lay out tasks, each of which depends only on earlier ones."""
    depth: dict[int, int] = {}
    for step in steps:
        depth[step.number] = max(
            (depth[dependency] + 1 for dependency in step.after if dependency in depth), default=0
        )
    rows = [
        [step for step in steps if depth[step.number] == row] for row in sorted(set(depth.values()))
    ]
    width = max((len(row) for row in rows), default=0) * (BOX_WIDTH + _GAP) + _GAP
    boxes = {}
    for y, row in enumerate(rows):
        row_x = (width - len(row) * (BOX_WIDTH + _GAP) + _GAP) // 2
        for place, step in enumerate(row):
            tone = "won" if step.status == WON else "lost" if step.lost else "open"
            boxes[step.number] = TaskBox(
                row_x + place * (BOX_WIDTH + _GAP), _GAP + y * _ROW_HEIGHT, step, tone
            )
    arrows = [
        _arrow(boxes[dependency], boxes[step.number])
        for step in steps
        for dependency in step.after
        if depth.get(dependency, step.number) < depth[step.number]
    ]
    return FlowChart(
        width,
        len(rows) * _ROW_HEIGHT - (_ROW_HEIGHT - BOX_HEIGHT) + 2 * _GAP,
        tuple(boxes.values()),
        tuple(arrows),
    )


def _arrow(start: TaskBox, end: TaskBox) -> str:
    x, y, to_x, to_y = (
        start.x + BOX_WIDTH // 2,
        start.y + BOX_HEIGHT,
        end.x + BOX_WIDTH // 2,
        end.y - 2,
    )
    middle = (y + to_y) // 2
    return f"M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour of a node, with its label, id, text and relation. `leads`: the relation leads to
    the node; otherwise it comes from it.
    """

    label: str
    id: str
    text: str
    relation: str
    leads: bool


@dataclass(frozen=True, slots=True)
class NeighbourhoodChart:
    """A node with its position, the neighbours that are drawn, and arrows; boxes of `node` by
    `BOX_HEIGHT`. Lengths are in px.
    """

    width: int
    height: int
    node: int
    x: int
    y: int
    around: tuple[tuple[int, int, Neighbour], ...]
    arrows: tuple[str, ...]


def draw_around(neighbours: Sequence[Neighbour]) -> NeighbourhoodChart:
    """Lay out a node with the first neighbours on each side."""
    sides = [
        [item for item in neighbours if item.leads is leads][:_MAX_NODES] for leads in (True, False)
    ]
    row, step = BOX_HEIGHT + _GAP, _NODE_WIDTH + 4 * _GAP
    height = max(1, *map(len, sides)) * row + _GAP
    y = (height - BOX_HEIGHT) // 2
    center_x = _GAP + step if sides[0] else _GAP
    columns = [_GAP, center_x, center_x + step]
    around, arrows = [], []
    for x, side in zip((columns[0], columns[2]), sides, strict=True):
        top = (height - len(side) * row + _GAP) // 2
        for place, item in enumerate(side):
            around.append((x, top + place * row, item))
            neighbour_y, center_y = top + place * row + BOX_HEIGHT // 2, y + BOX_HEIGHT // 2
            start, end = (
                ((x + _NODE_WIDTH, neighbour_y), (columns[1] - 2, center_y))
                if item.leads
                else ((columns[1] + _NODE_WIDTH, center_y), (x - 2, neighbour_y))
            )
            middle_x = (start[0] + end[0]) // 2
            arrows.append(
                f"M{start[0]} {start[1]} C{middle_x} {start[1]} {middle_x} {end[1]} {end[0]} "
                f"{end[1]}"
            )
    return NeighbourhoodChart(
        columns[2 if sides[1] else 1] + _NODE_WIDTH + _GAP,
        height,
        _NODE_WIDTH,
        columns[1],
        y,
        tuple(around),
        tuple(arrows),
    )


def brief(text: str) -> str:
    """Shorten a text to a line of a node."""
    return text if len(text) <= _LINE_CHARS else f"{text[: _LINE_CHARS - 1]}…"


# Bar charts as SVG: a stacked bar for each day.


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
    visible_series = tuple(item for item in series if item.total > 0)
    top = max((sum(item.values.get(day, 0) for item in visible_series) for day in days), default=0)
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
        for item in visible_series:
            if (value := item.values.get(day, 0)) > 0:
                height = value * scale
                bottom -= height
                title = f"{day:%d %b}: {item.name}, {value:,.0f}"
                bars.append(Bar(x, round(bottom, 1), width, round(height, 1), item.tone, title))
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
        visible_series,
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


# The council timeline as SVG: a row for each seat, time from left to right. It is on the council's
# page, and `moothall show --html` writes it as one file. Times are in percent of the width, so that
# it fits every screen.


ROW_HEIGHT, AXIS_HEIGHT = 30, 24
"""Sizes in px."""
_MIN_BLOCK_WIDTH = 0.5
"""The width in percent of blocks that take almost no time."""
_TIMELINE_MAX_TICKS = 8
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A block with its position and width in percent, and its number among all blocks, from 1."""

    number: int
    x: float
    width: float
    block: Block


@dataclass(frozen=True, slots=True)
class Row:
    """A lane with its position in px."""

    y: int
    name: str
    outcome: str
    bars: tuple[TimelineBar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """The rows, the ticks of the time axis as (percent, seconds), the height in px, and the number
    of steps that are left out.
    """

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, int], ...]
    height: int
    omitted: int


def draw_timeline(timeline: Timeline) -> Chart | None:
    """Return the chart of a timeline, None if nothing has happened yet."""
    if not timeline.lanes:
        return None
    seconds = max(timeline.seconds, 1.0)
    scale = 100 / seconds
    rows: list[Row] = []
    number = 0
    for index, lane in enumerate(timeline.lanes):
        bars = []
        for block in lane.blocks:
            number += 1
            width = max(_MIN_BLOCK_WIDTH, (block.end - block.start) * scale)
            x = min(block.start * scale, 100 - width)
            bars.append(TimelineBar(number, round(x, 2), round(width, 2), block))
        rows.append(Row(index * ROW_HEIGHT, lane.name, lane.outcome, tuple(bars)))
    step = next((size for size in _STEPS if seconds / size <= _TIMELINE_MAX_TICKS), _STEPS[-1])
    ticks = tuple((round(second * scale, 2), second) for second in range(0, int(seconds) + 1, step))
    height = len(rows) * ROW_HEIGHT + AXIS_HEIGHT
    return Chart(tuple(rows), ticks, height, timeline.omitted)
