"""Diffs for people: lines with their kind and place, so that a line can be commented on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Literal

_FILE = re.compile(r'^diff --git .* "?b/(.*?)"?$', re.MULTILINE)
_NEXT_FILE = "\ndiff --git "
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
Run = tuple[str, Sequence[tuple[int, "DiffLine"]]]
"""A kind of lines, and the lines with their numbers."""


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
            path = _unquote_path(text[4:]).partition("/")[2]
        diff_lines.append(DiffLine("place", text, path))
    return diff_lines


def _unquote_path(path: str) -> str:
    """Return a path of a header. Git quotes unusual paths and writes their bytes in octal."""
    if not path.startswith('"'):
        return path.removesuffix("\t")  # follows a name with spaces
    raw = path.strip('"').encode("latin-1", "replace").decode("unicode_escape", "replace")
    return raw.encode("latin-1", "replace").decode("utf-8", "replace")


@dataclass(frozen=True)
class DiffFile:
    """One file of a diff. `notes` are git's headers in words, such as "new". `first_number` is the
    number of its first header in the whole diff, from 1. Its lines are read when they are needed,
    because a diff may have thousands of files.
    """

    path: str
    text: str
    first_number: int
    notes: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> tuple[tuple[int, DiffLine], ...]:
        """The lines, each with its number in the whole diff. They include the places of hunks, and
        no headers.
        """
        headers = _read_header(self.text)[2]
        numbered = enumerate(read_diff(self.text), self.first_number)
        return tuple(
            (number, line)
            for number, line in numbered
            if number - self.first_number not in headers
            and not (line.kind == "place" and line.text.startswith(_HEADERS))
        )

    @cached_property
    def _hunks_text(self) -> str:
        """The hunks, with a newline before each line."""
        start = self.text.find("\n@@ ") if _FILE.match(self.text) else -1
        return self.text[start:].rstrip("\n") if start >= 0 else ""

    @cached_property
    def line_count(self) -> int:
        """The number of `lines`."""
        return self._hunks_text.count("\n") or len(self.lines)

    @cached_property
    def added(self) -> int:
        """The number of added lines."""
        if self._hunks_text:
            return self._hunks_text.count("\n+")
        return sum(line.kind == "added" for _, line in self.lines)

    @cached_property
    def removed(self) -> int:
        """The number of removed lines."""
        if self._hunks_text:
            return self._hunks_text.count("\n-")
        return sum(line.kind == "removed" for _, line in self.lines)

    def runs(self, start: int = 0, count: int | None = None) -> Sequence[Run]:
        """Return `count` lines from the index `start`, grouped by how they are shown: `place`,
        `same` or `change`.
        """
        stop = None if count is None else start + count

        def group_kind(item: tuple[int, DiffLine]) -> str:
            return "change" if item[1].kind in {"added", "removed"} else item[1].kind

        return [(kind, list(run)) for kind, run in groupby(self.lines[start:stop], group_kind)]


@lru_cache(maxsize=8)
def read_files(diff: str) -> tuple[DiffFile, ...]:
    """Return the files of a diff, in order."""
    starts, start = [0], diff.find(_NEXT_FILE)
    while start >= 0:
        if _FILE.match(diff, start + 1):
            starts.append(start + 1)
        start = diff.find(_NEXT_FILE, start + 1)
    files, number = [], 1
    for start, end in pairwise([*starts, len(diff)] if diff else ()):
        text = diff[start:end]
        path, notes, _ = _read_header(text)
        files.append(DiffFile(path, text, number, notes))
        number += text.count("\n")
    return tuple(files)


def _read_header(text: str) -> tuple[str, tuple[str, ...], frozenset[int]]:
    """Return the path of a file of a diff, its notes, and the indexes of the lines that say them.

    Without git's own first line, only the names before and after the change are headers.
    """
    named = _FILE.match(text)
    path, notes, indexes = (
        _unquote_path(f'"{named[1]}"') if named else "",
        [],
        {0} if named else set(),
    )
    for index, line in enumerate(text.partition("\n@@ ")[0].split("\n")):
        if line.startswith("+++ ") and line[4:] != "/dev/null":
            path = _unquote_path(line[4:]).partition("/")[2] or path
        elif not line.startswith(_HEADERS) and (note := _header_note(line)) is not None:
            notes += [note] if note else []
            indexes.add(index)
        elif index not in indexes and not line.startswith(_HEADERS):
            break
    return path, tuple(notes), frozenset(indexes)


def _header_note(header: str) -> str | None:
    """Return the text of a header for people, '' if they need none. Return None for other lines."""
    for pattern, note in _NOTES:
        if match := pattern.match(header):
            return note.format(_unquote_path(f"{match[1]}\t") if match.groups() else "")
    return None
