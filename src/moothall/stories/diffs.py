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
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)")
_NOTES = (
    (re.compile(r"new file mode 120000"), "new symbolic link"),
    (re.compile(r"new file mode "), "new"),
    (re.compile(r"deleted file mode "), "deleted"),
    (re.compile(r"rename from (.*)"), "renamed from {}"),
    (re.compile(r"copy from (.*)"), "copied from {}"),
    (re.compile(r"new mode 100(\d{3})"), "mode {}"),
    (re.compile(r"(?:Binary files .* differ|GIT binary patch)$"), "binary"),
    (re.compile(r"(?:old mode|(?:dis)?similarity index|rename to|copy to) "), ""),
)
"""Git's headers of a file, and their text for people."""
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

    @property
    def caption(self) -> str:
        """The text of a `place` for people."""
        if hunk := _HUNK.match(self.text):
            section = f" · {hunk[5]}" if hunk[5] else ""
            return f"Line {hunk[3] if hunk[3] != '0' else hunk[1]}{section}"
        if self.text.startswith("\\"):
            return "No newline at the end of the file"
        return self.text


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
    the places of hunks, and no headers. `notes` are the headers in words, such as "new".
    """

    path: str
    lines: tuple[tuple[int, DiffLine], ...]
    added: int
    removed: int
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> Sequence[tuple[str, Sequence[tuple[int, DiffLine]]]]:
        """The lines, grouped by how they are shown: `place`, `same` or `change`."""

        def group_kind(item: tuple[int, DiffLine]) -> str:
            return "change" if item[1].kind in {"added", "removed"} else item[1].kind

        return [(kind, list(run)) for kind, run in groupby(self.lines, group_kind)]


@lru_cache(maxsize=8)
def read_files(diff: str) -> tuple[DiffFile, ...]:
    """Return the files of a diff, in order."""
    files: list[tuple[str, list[tuple[int, DiffLine]], list[str]]] = []
    for number, line in enumerate(read_diff(diff), 1):
        if (header := _FILE.match(line.text)) and line.kind == "place":
            files.append((_unquote(f'"{header[1]}"'), [], []))
            continue
        if not files:
            files.append((line.path, [], []))
        path, lines, notes = files[-1]
        if line.kind == "place" and line.text.startswith(_HEADERS):
            if line.path and line.path != path and line.text.startswith("+++ "):
                files[-1] = (line.path, lines, notes)
            continue
        if line.kind == "place" and not lines and (note := _note(line.text)) is not None:
            notes += [note] if note else []
            continue
        lines.append((number, line))
    return tuple(
        DiffFile(
            path,
            tuple(lines),
            sum(line.kind == "added" for _, line in lines),
            sum(line.kind == "removed" for _, line in lines),
            tuple(notes),
        )
        for path, lines, notes in files
    )


def _note(header: str) -> str | None:
    """Return the text of a header for people, '' if they need none. Return None for other lines."""
    for pattern, note in _NOTES:
        if match := pattern.match(header):
            return note.format(_unquote(f"{match[1]}\t") if match.groups() else "")
    return None
