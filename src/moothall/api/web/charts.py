"""Layouts of charts drawn on the server. A graph of tasks has a row for each level of dependencies.
In the chart of a node's neighbours, nodes with a relation to it are on the left, and nodes to which
it has one are on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.stories.task_history import WON, RoundTask

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
