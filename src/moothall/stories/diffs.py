"""A diff as people read it: its lines, what each is, and where it stands, so that something can be
said of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

MOST = 2_000
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
Kind = Literal["added", "removed", "same", "place"]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff with its sign, and its number in its file: as it is after, or for a removed
    one as it was; `before` is what one that stays the same had. A `place` has no number: it says
    where the lines after it are.
    """

    kind: Kind
    text: str
    path: str = ""
    number: int = 0
    before: int = 0


def read_diff(diff: str, most: int = MOST) -> Sequence[DiffLine]:
    """Return the lines of a git diff; no more than `most`, by default what a browser shows well.
    Lines that say themselves where they are, inside a hunk, are lines of a file and not believed.
    """
    lines = diff.split("\n")
    if lines[-1] == "":
        lines.pop()
    found: list[DiffLine] = []
    path, old, new, old_end, new_end = "", 0, 0, 0, 0
    for text in lines[:most]:
        kind: Kind = {"+": "added", "-": "removed", " ": "same"}.get(text[:1], "place")  # type: ignore[assignment]
        if (
            (kind == "added" and new < new_end)
            or (kind == "removed" and old < old_end)
            or (kind == "same" and new < new_end)
        ):
            found.append(
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
        found.append(DiffLine("place", text, path))
    more = len(lines) - most
    return (
        [*found, DiffLine("place", f"… {more} more lines; `moothall` shows them all")]
        if more > 0
        else found
    )


def runs(lines: Sequence[DiffLine]) -> Sequence[tuple[str, Sequence[tuple[int, DiffLine]]]]:
    """Return the lines in runs of what is shown alike, `place`, `same` or `change`: each line with
    its number in the diff, from 1.
    """

    def alike(item: tuple[int, DiffLine]) -> str:
        return "change" if item[1].kind in {"added", "removed"} else item[1].kind

    return [(kind, list(run)) for kind, run in groupby(enumerate(lines, 1), alike)]
