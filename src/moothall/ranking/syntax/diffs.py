"""A git diff read line by line: what a file says after it, and which of its lines it adds. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_START = re.compile(r"(?m)^diff --git ")
_NAME = re.compile(r'(?m)^\+\+\+ (?:"b/(?P<quoted>.*)"|b/(?P<name>.*?))\t?$')
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The part of a diff about one file that is there after it; `new` where it was not before."""

    path: str
    new: bool
    body: str

    @property
    def added(self) -> dict[int, str]:
        """The lines that it adds, by their number after it."""
        found: dict[int, str] = {}
        number = 0
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                number = int(hunk[3])
            elif number and line[:1] in {"+", " "}:
                if line[0] == "+":
                    found[number] = line[1:]
                number += 1
        return found

    @property
    def removed(self) -> tuple[str, ...]:
        """The lines that it takes away."""
        body = self.body.partition("\n")[2]
        return tuple(line[1:] for line in body.split("\n") if line[:1] == "-")

    def apply(self, base: str) -> str:
        """Return the file's text after it. `base` is the text before; where the two do not fit, the
        result is of no use.
        """
        lines, found, at = base.split("\n"), list[str](), 0
        inside = False
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                start = int(hunk[1]) - (0 if hunk[2] == "0" else 1)
                found += lines[at:start]
                at, inside = start, True
            elif inside and line[:1] == "+":
                found.append(line[1:])
            elif inside and line[:1] == " ":
                found.append(line[1:])
                at += 1
            elif inside and line[:1] == "-":
                at += 1
        return "\n".join([*found, *lines[at:]])


def keep_files(diff: str, wanted: Callable[[FileDiff], bool]) -> str:
    """Return the parts of a diff about text files that `wanted` takes. Files that are gone, renamed
    or binary are left out.
    """
    starts = [match.start() for match in _START.finditer(diff)]
    kept = []
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        found = next(file_diffs(part), None)
        if (
            found is not None
            and "\nrename from " not in part.partition("\n@@ ")[0]
            and wanted(found)
        ):
            kept.append(part)
    return "".join(kept)


def file_diffs(diff: str) -> Iterator[FileDiff]:
    """Yield what a diff says of each text file that is there after it."""
    starts = [match.start() for match in _START.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        head, mark, body = part.partition("\n@@ ")
        name = _NAME.search(head + "\n")
        if mark and name:
            yield FileDiff(
                name["name"] or name["quoted"] or "", "\n--- /dev/null" in head, f"@@ {body}"
            )
