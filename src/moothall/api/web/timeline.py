"""The council timeline as SVG: a row for each seat, time from left to right. It is on the council's
page, and `moothall show --html` writes it as one file.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.collector.timeline import Block, Timeline

WIDTH, LABEL_WIDTH, ROW_HEIGHT, AXIS_HEIGHT = 960, 170, 30, 24
"""Sizes in px."""
_MIN_BLOCK_WIDTH = 3.0
_MAX_TICKS = 8
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Bar:
    """A block with its position in px, and its number among all blocks, from 1."""

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
    """The rows, the ticks of the time axis as (x, seconds), the height in px, and the number of
    steps that are left out.
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
    scale = (WIDTH - LABEL_WIDTH) / seconds
    rows: list[Row] = []
    number = 0
    for index, lane in enumerate(timeline.lanes):
        bars = []
        for block in lane.blocks:
            number += 1
            width = max(_MIN_BLOCK_WIDTH, (block.end - block.start) * scale)
            x = min(LABEL_WIDTH + block.start * scale, WIDTH - width)
            bars.append(Bar(number, round(x, 1), round(width, 1), block))
        rows.append(Row(index * ROW_HEIGHT, lane.name, lane.outcome, tuple(bars)))
    step = next((size for size in _STEPS if seconds / size <= _MAX_TICKS), _STEPS[-1])
    ticks = tuple(
        (round(LABEL_WIDTH + second * scale, 1), second)
        for second in range(0, int(seconds) + 1, step)
    )
    height = len(rows) * ROW_HEIGHT + AXIS_HEIGHT
    return Chart(tuple(rows), ticks, height, timeline.omitted)
