"""Context of the cases that fail on the base: their output, the lines of the repository that it
names, and the tests.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moothall.domain.evidence import CheckRun, Verdict

_RED = {"failed", "errored"}
# `File "src/a.py", line 12`, `src/a.py:12: ValueError`, `(lib/a.js:3:5)`, `foo_test.go:12:`,
# `src/lib.rs:10:5`
_FRAME = re.compile(
    r'([\w@.+/-]*[\w@+-]\.(?:pyi?|[cm]?[jt]sx?|go|rs|cc|[ch](?:pp|xx)?))(?:", line |:)(\d{1,6})\b'
)
_NAME = re.compile(r"[^\W\d]\w*")
_MOST_FRAMES = 40
_READ_CHARS = 20_000
_MESSAGE_LINES, _LINE_CHARS = 4, 300  # lines that identify a failure, and compared characters


@dataclass(frozen=True, slots=True)
class Red:
    """A case that fails on the base.

    check, case: its names. A check without cases is a case itself. detail: its output. frames: the
    lines of the repository in it, (path, line), from the place of the failure outwards.
    """

    check: str
    case: str
    detail: str
    frames: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The identifiers in its id, last first: the innermost is the test's own."""
        return tuple(reversed(_NAME.findall(self.case.partition("[")[0])))

    @property
    def way(self) -> object:
        """A key that is equal for cases that fail in the same way: the innermost line of the
        repository and the message there, or else the case.
        """
        if not self.frames:
            return self.case
        lines = [
            line.strip()[:_LINE_CHARS]
            for line in self.detail[-_READ_CHARS:].split("\n")
            if line.strip()
        ]
        context = [
            line
            for line in lines
            if not _FRAME.search(line) and not line.startswith(("===", "---", "note:"))
        ][:_MESSAGE_LINES]
        return self.frames[0], tuple(line for line in lines if line.startswith("E ")) or tuple(
            context
        )


def red_cases(
    runs: Mapping[str, CheckRun],
    files: Sequence[str],
    folders: Mapping[str, str],
    skipped: Sequence[str] = (),
) -> list[Red]:
    """Return the failing cases: first one for each way to fail, then those that fail in the same
    way as another, then those without output.

    skipped: ids to leave out.
    """
    found: list[Red] = []
    for check, run in runs.items():
        red = [
            case for case, outcome in run.cases.items() if outcome in _RED and case not in skipped
        ]
        folder = folders.get(check, "")
        known = Known(files, folder)
        if not run.cases and run.verdict is Verdict.FAILED:
            red = [check]
        alone = len(red) == 1
        for case in red:
            detail = run.details.get(case, "") or (run.output if alone or not run.cases else "")
            found.append(Red(check, case, detail, known.frames(detail)))
    firsts = {item.way: item for item in reversed(found) if item.detail}
    return sorted(found, key=lambda item: (not item.detail, firsts.get(item.way) is not item))


class Known:
    """The files of a repository, found by the names that a runner in one of its folders uses."""

    def __init__(self, files: Sequence[str], folder: str = "") -> None:
        self._files = set(files)
        self._folder = folder
        self._by_name: dict[str, list[str]] = {}
        for path in files:
            self._by_name.setdefault(posixpath.basename(path), []).append(path)

    def path(self, path_text: str) -> str:
        """Return the file that a text means, or ''. Of several files, the one with the longest
        common end counts, if there is only one.
        """
        plain = posixpath.normpath(path_text)
        for path in (posixpath.normpath(posixpath.join(self._folder, plain)), plain):
            if path in self._files:
                return path
        parts = plain.strip("/").split("/")
        fits = [
            (_count_shared(path.split("/"), parts), path)
            for path in self._by_name.get(parts[-1], ())
        ]
        best = max((count for count, _ in fits), default=0)
        longest = [path for count, path in fits if count == best]
        within = (
            [path for path in longest if path.startswith(f"{self._folder}/")]
            if self._folder
            else []
        )
        chosen = longest if len(longest) == 1 else within
        return (
            chosen[0]
            if len(chosen) == 1 and (best > 1 or len(parts) == 1 or "/" not in chosen[0])
            else ""
        )

    def frames(self, text: str) -> tuple[tuple[str, int], ...]:
        """Return the lines of the repository, (path, line), that a text names, innermost first.
        Python prints them last, others first.
        """
        found = [
            (path, int(line))
            for path_text, line in _FRAME.findall(text[-_READ_CHARS:])
            if (path := self.path(path_text))
        ]
        if any(path.endswith(".py") for path, _ in found):
            found.reverse()
        return tuple(dict.fromkeys(found))[:_MOST_FRAMES]


def _count_shared(ones: Sequence[str], others: Sequence[str]) -> int:
    count = 0
    while count < min(len(ones), len(others)) and ones[-1 - count] == others[-1 - count]:
        count += 1
    return count
