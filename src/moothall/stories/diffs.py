"""Diffs as people read them: lines with their kind and place, so that a line can be commented
on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

MAX_LINES = 2_000
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
Kind = Literal["added", "removed", "same", "place"]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff with its sign.

    `number` is the line's number in the file after the change; for a removed line, its number
    before. `old_number` is the old number of an unchanged line. A `place` has no number: it says
    where the lines after it are.
    """

    kind: Kind
    text: str
    path: str = ""
    number: int = 0
    old_number: int = 0


def read_diff(diff: str, max_lines: int = MAX_LINES) -> Sequence[DiffLine]:
    """Return the lines of a git diff, at most `max_lines`, by default what a browser shows well.
    Inside a hunk, lines that look like headers are lines of a file.
    """
    lines = diff.split("\n")
    if lines[-1] == "":
        lines.pop()
    diff_lines: list[DiffLine] = []
    path, old, new, old_end, new_end = "", 0, 0, 0, 0
    for text in lines[:max_lines]:
        kind: Kind = {"+": "added", "-": "removed", " ": "same"}.get(text[:1], "place")  # type: ignore[assignment]
        if (
            (kind == "added" and new < new_end)
            or (kind == "removed" and old < old_end)
            or (kind == "same" and new < new_end)
        ):
            diff_lines.append(
                DiffLine(
                    kind,
                    text,
                    path,
                    old if kind == "removed" else new,
                    old if kind == "same" else 0,
                )
            )
            old, new = old + (kind != "added"), new + (kind != "removed")
            continue
        if hunk := _HUNK.match(text):
            old, new = int(hunk[1]), int(hunk[3])
            old_end, new_end = old + int(hunk[2] or 1), new + int(hunk[4] or 1)
        elif text.startswith(("--- ", "+++ ")) and text[4:] != "/dev/null":
            path = text[4:].partition("/")[2]
        diff_lines.append(DiffLine("place", text, path))
    omitted = len(lines) - max_lines
    return (
        [*diff_lines, DiffLine("place", f"… {omitted} more lines; `moothall` shows them all")]
        if omitted > 0
        else diff_lines
    )


def runs(lines: Sequence[DiffLine]) -> Sequence[tuple[str, Sequence[tuple[int, DiffLine]]]]:
    """Group consecutive lines that are shown alike, as `place`, `same` or `change`. Each line has
    its number in the diff, from 1.
    """

    def group_kind(item: tuple[int, DiffLine]) -> str:
        return "change" if item[1].kind in {"added", "removed"} else item[1].kind

    return [(kind, list(run)) for kind, run in groupby(enumerate(lines, 1), group_kind)]
