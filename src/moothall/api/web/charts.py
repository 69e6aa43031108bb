"""Where boxes and arrows are drawn, for pictures made on the server: a graph of tasks has a row for
each step away from those that build on nothing, and what is around a node stands left of it where
it leads to it, right where it comes from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.stories.task_history import WON, RoundTask

WIDE, HIGH, _GAP, _ROW = 132, 52, 16, 88
_NODE, _NODES, _LETTERS = 320, 12, 34
"""How wide a node is, in px, how many are drawn on a side, and the letters that fit into a line of
one.
"""


@dataclass(frozen=True, slots=True)
class TaskBox:
    """A task at a place; `tone` is won, lost or open."""

    x: int
    y: int
    step: RoundTask
    tone: str


@dataclass(frozen=True, slots=True)
class FlowChart:
    """Boxes of `WIDE` by `HIGH`, arrows as paths of SVG, and how large all of it is; in px."""

    width: int
    height: int
    boxes: tuple[TaskBox, ...]
    arrows: tuple[str, ...]


def draw(steps: Sequence[RoundTask]) -> FlowChart:
    """Return how tasks are drawn, each of which builds on earlier ones only."""
    depth: dict[int, int] = {}
    for step in steps:
        depth[step.number] = max(
            (depth[before] + 1 for before in step.after if before in depth), default=0
        )
    rows = [
        [step for step in steps if depth[step.number] == row] for row in sorted(set(depth.values()))
    ]
    width = max((len(row) for row in rows), default=0) * (WIDE + _GAP) + _GAP
    boxes = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (WIDE + _GAP) + _GAP) // 2
        for place, step in enumerate(row):
            tone = "won" if step.stand == WON else "lost" if step.lost else "open"
            boxes[step.number] = TaskBox(left + place * (WIDE + _GAP), _GAP + y * _ROW, step, tone)
    arrows = [
        _arrow(boxes[before], boxes[step.number])
        for step in steps
        for before in step.after
        if depth.get(before, step.number) < depth[step.number]
    ]
    return FlowChart(
        width, len(rows) * _ROW - (_ROW - HIGH) + 2 * _GAP, tuple(boxes.values()), tuple(arrows)
    )


def _arrow(start: TaskBox, end: TaskBox) -> str:
    x, y, to_x, to_y = start.x + WIDE // 2, start.y + HIGH, end.x + WIDE // 2, end.y - 2
    middle = (y + to_y) // 2
    return f"M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node beside another: its label, id and words, and the relation by which it is there;
    `leads` to the other, or comes from it.
    """

    label: str
    id: str
    words: str
    relation: str
    leads: bool


@dataclass(frozen=True, slots=True)
class NeighbourhoodChart:
    """A node at a place in px, those around it that are drawn, and arrows; boxes of `node` by
    `HIGH`.
    """

    width: int
    height: int
    node: int
    x: int
    y: int
    around: tuple[tuple[int, int, Neighbour], ...]
    arrows: tuple[str, ...]


def draw_around(near: Sequence[Neighbour]) -> NeighbourhoodChart:
    """Return how the first nodes on each side of one are drawn."""
    sides = [[item for item in near if item.leads is leads][:_NODES] for leads in (True, False)]
    row, step = HIGH + _GAP, _NODE + 4 * _GAP
    height = max(1, *map(len, sides)) * row + _GAP
    y = (height - HIGH) // 2
    first = _GAP + step if sides[0] else _GAP
    at = [_GAP, first, first + step]
    around, arrows = [], []
    for x, side in zip((at[0], at[2]), sides, strict=True):
        top = (height - len(side) * row + _GAP) // 2
        for place, item in enumerate(side):
            around.append((x, top + place * row, item))
            mine, middle = top + place * row + HIGH // 2, y + HIGH // 2
            start, end = (
                ((x + _NODE, mine), (at[1] - 2, middle))
                if item.leads
                else ((at[1] + _NODE, middle), (x - 2, mine))
            )
            half = (start[0] + end[0]) // 2
            arrows.append(
                f"M{start[0]} {start[1]} C{half} {start[1]} {half} {end[1]} {end[0]} {end[1]}"
            )
    return NeighbourhoodChart(
        at[2 if sides[1] else 1] + _NODE + _GAP,
        height,
        _NODE,
        at[1],
        y,
        tuple(around),
        tuple(arrows),
    )


def brief(text: str) -> str:
    """Return what fits into a line of a node."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
