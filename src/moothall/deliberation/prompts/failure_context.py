"""What the red cases of the untouched base point at: their text, the lines of the repository that
it names, the tests themselves.
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
_SAID, _LINE = 4, 300  # lines by which failures are told apart, and as much of each


@dataclass(frozen=True, slots=True)
class Red:
    """A case that is red on the base: its check, its id, what it said, and the lines of the
    repository named there, (path, line) from the place of the failure outwards. Where a check gave
    no cases, the check itself is one.
    """

    check: str
    case: str
    detail: str
    frames: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The identifiers in its id, the last first: the innermost is the test's own."""
        return tuple(reversed(_NAME.findall(self.case.partition("[")[0])))

    @property
    def way(self) -> object:
        """The same for cases that fail in the same way: the innermost line of the repository and
        what is said there; else the case.
        """
        if not self.frames:
            return self.case
        lines = [
            line.strip()[:_LINE] for line in self.detail[-_READ_CHARS:].split("\n") if line.strip()
        ]
        context = [
            line
            for line in lines
            if not _FRAME.search(line) and not line.startswith(("===", "---", "note:"))
        ][:_SAID]
        return self.frames[0], tuple(line for line in lines if line.startswith("E ")) or tuple(
            context
        )


def red_cases(
    runs: Mapping[str, CheckRun],
    files: Sequence[str],
    folders: Mapping[str, str],
    skipped: Sequence[str] = (),
) -> list[Red]:
    """Return the red cases in the order of the runs: one for each way to fail, then those that fail
    as another one does, then those without a text of their own. `skipped` ids are left out.
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
    """The files of a repository, found by what a runner in one of its folders calls them."""

    def __init__(self, files: Sequence[str], folder: str = "") -> None:
        self._files = set(files)
        self._folder = folder
        self._by_name: dict[str, list[str]] = {}
        for path in files:
            self._by_name.setdefault(posixpath.basename(path), []).append(path)

    def path(self, path_text: str) -> str:
        """Return the file that is meant, or ''. Never a guess between two: the longest end of the
        path that they share decides.
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
        """Return the (path, line) of the repository that a text names, innermost first: Python
        prints it last, others first.
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
