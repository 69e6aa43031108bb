"""The council timeline as SVG: a row for each seat, time from left to right. It is on the council's
page, and `moothall show --html` writes it as one file. Times are in percent of the width, so that
it fits every screen.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.collector.timeline import Block, Timeline

ROW_HEIGHT, AXIS_HEIGHT = 30, 24
"""Sizes in px."""
_MIN_BLOCK_WIDTH = 0.5
"""The width in percent of blocks that take almost no time."""
_MAX_TICKS = 8
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Bar:
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
    bars: tuple[Bar, ...]


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
            bars.append(Bar(number, round(x, 2), round(width, 2), block))
        rows.append(Row(index * ROW_HEIGHT, lane.name, lane.outcome, tuple(bars)))
    step = next((size for size in _STEPS if seconds / size <= _MAX_TICKS), _STEPS[-1])
    ticks = tuple((round(second * scale, 2), second) for second in range(0, int(seconds) + 1, step))
    height = len(rows) * ROW_HEIGHT + AXIS_HEIGHT
    return Chart(tuple(rows), ticks, height, timeline.omitted)
