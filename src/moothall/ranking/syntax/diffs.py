"""Parsing and application of git diffs. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_START = re.compile(r"(?m)^diff --git ")
_NAME = re.compile(r'(?m)^\+\+\+ (?:"b/(?P<quoted>.*)"|b/(?P<name>.*?))\t?$')
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The part of a diff about one text file that exists after it.

    new: the file did not exist before.
    """

    path: str
    new: bool
    body: str

    @property
    def added(self) -> dict[int, str]:
        """The added lines by their line numbers after the change."""
        lines: dict[int, str] = {}
        number = 0
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                number = int(hunk[3])
            elif number and line[:1] in {"+", " "}:
                if line[0] == "+":
                    lines[number] = line[1:]
                number += 1
        return lines

    @property
    def removed(self) -> tuple[str, ...]:
        """The removed lines."""
        body = self.body.partition("\n")[2]
        return tuple(line[1:] for line in body.split("\n") if line[:1] == "-")

    def apply(self, base: str) -> str:
        """Return the text of the file after the change.

        base: the text before. The result is undefined if the diff does not fit it.
        """
        lines, result, position = base.split("\n"), list[str](), 0
        in_hunk = False
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                start = int(hunk[1]) - (0 if hunk[2] == "0" else 1)
                result += lines[position:start]
                position, in_hunk = start, True
            elif in_hunk and line[:1] == "+":
                result.append(line[1:])
            elif in_hunk and line[:1] == " ":
                result.append(line[1:])
                position += 1
            elif in_hunk and line[:1] == "-":
                position += 1
        return "\n".join([*result, *lines[position:]])


def filter_files(diff: str, keep: Callable[[FileDiff], bool]) -> str:
    """Return the parts of a diff about text files for which `keep` is true.

    Deleted, renamed and binary files are dropped.
    """
    starts = [match.start() for match in _START.finditer(diff)]
    parts = []
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        file_diff = next(file_diffs(part), None)
        if (
            file_diff is not None
            and "\nrename from " not in part.partition("\n@@ ")[0]
            and keep(file_diff)
        ):
            parts.append(part)
    return "".join(parts)


def file_diffs(diff: str) -> Iterator[FileDiff]:
    """Yield the part of a diff about each text file that exists after it."""
    starts = [match.start() for match in _START.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        head, separator, body = part.partition("\n@@ ")
        name = _NAME.search(head + "\n")
        if separator and name:
            yield FileDiff(
                name["name"] or name["quoted"] or "", "\n--- /dev/null" in head, f"@@ {body}"
            )
