"""Diffs as people read them: lines with their kind and place, so that a line can be commented
on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

_FILE = re.compile(r'diff --git .* "?b/(.*?)"?$')
_HEADERS = ("index ", "--- ", "+++ ")
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


def read_diff(diff: str) -> Sequence[DiffLine]:
    """Return the lines of a git diff. Inside a hunk, lines that look like headers are lines of a
    file.
    """
    lines = diff.split("\n")
    if lines[-1] == "":
        lines.pop()
    diff_lines: list[DiffLine] = []
    path, old, new, old_end, new_end = "", 0, 0, 0, 0
    for text in lines:
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
            path = _unquote(text[4:]).partition("/")[2]
        diff_lines.append(DiffLine("place", text, path))
    return diff_lines


def _unquote(path: str) -> str:
    """Return a path of a header. Git quotes unusual paths and writes their bytes in octal."""
    if not path.startswith('"'):
        return path.removesuffix("\t")  # follows a name with spaces
    raw = path.strip('"').encode("latin-1", "replace").decode("unicode_escape", "replace")
    return raw.encode("latin-1", "replace").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class DiffFile:
    """The lines of one file of a diff, each with its number in the whole diff, from 1. They include
    the places of hunks and notes such as a changed mode, and no other headers.
    """

    path: str
    lines: tuple[tuple[int, DiffLine], ...]
    added: int
    removed: int

    @property
    def runs(self) -> Sequence[tuple[str, Sequence[tuple[int, DiffLine]]]]:
        """The lines, grouped by how they are shown: `place`, `same` or `change`."""

        def group_kind(item: tuple[int, DiffLine]) -> str:
            return "change" if item[1].kind in {"added", "removed"} else item[1].kind

        return [(kind, list(run)) for kind, run in groupby(self.lines, group_kind)]


@lru_cache(maxsize=8)
def read_files(diff: str) -> tuple[DiffFile, ...]:
    """Return the files of a diff, in order."""
    files: list[tuple[str, list[tuple[int, DiffLine]]]] = []
    for number, line in enumerate(read_diff(diff), 1):
        if (header := _FILE.match(line.text)) and line.kind == "place":
            files.append((_unquote(f'"{header[1]}"'), []))
            continue
        if not files:
            files.append((line.path, []))
        path, lines = files[-1]
        if line.kind == "place" and line.text.startswith(_HEADERS):
            if line.path and line.path != path and line.text.startswith("+++ "):
                files[-1] = (line.path, lines)
            continue
        lines.append((number, line))
    return tuple(
        DiffFile(
            path,
            tuple(lines),
            sum(line.kind == "added" for _, line in lines),
            sum(line.kind == "removed" for _, line in lines),
        )
        for path, lines in files
    )
