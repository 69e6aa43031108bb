"""Where the boxes and arrows of a graph of tasks are drawn: a row for each step away from those that build on nothing, for a picture made on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.planning.rounds import WON, RoundTask

WIDE, HIGH, _GAP, _ROW = 132, 52, 16, 88


@dataclass(frozen=True, slots=True)
class Box:
    """A task at a place; `tone` is won, lost or open."""

    x: int
    y: int
    step: RoundTask
    tone: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes of `WIDE` by `HIGH`, arrows as paths of SVG, and how large all of it is; in px."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]


def draw(steps: Sequence[RoundTask]) -> Drawing:
    """Return how tasks are drawn, each of which builds on earlier ones only."""
    depth: dict[int, int] = {}
    for step in steps:
        depth[step.number] = max((depth[before] + 1 for before in step.after if before in depth), default=0)
    rows = [[step for step in steps if depth[step.number] == row] for row in sorted(set(depth.values()))]
    width = max((len(row) for row in rows), default=0) * (WIDE + _GAP) + _GAP
    boxes = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (WIDE + _GAP) + _GAP) // 2
        for place, step in enumerate(row):
            tone = "won" if step.stand == WON else "lost" if step.lost else "open"
            boxes[step.number] = Box(left + place * (WIDE + _GAP), _GAP + y * _ROW, step, tone)
    arrows = [
        _arrow(boxes[before], boxes[step.number])
        for step in steps
        for before in step.after
        if depth.get(before, step.number) < depth[step.number]
    ]
    return Drawing(width, len(rows) * _ROW - (_ROW - HIGH) + 2 * _GAP, tuple(boxes.values()), tuple(arrows))


def _arrow(start: Box, end: Box) -> str:
    x, y, to_x, to_y = start.x + WIDE // 2, start.y + HIGH, end.x + WIDE // 2, end.y - 2
    middle = (y + to_y) // 2
    return f"M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y}"
