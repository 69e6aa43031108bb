"""The cases of a test run, read from what its runner wrote: lines of JSON by our reporters, or
JUnit's XML.

Standard library only: they are read inside the sandbox. Code under test may have written anything
there, so that whatever is read is bounded, no link is followed, and nothing that it holds makes
reading fail.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = "/tmp/moothall-reports"  # noqa: S108 - inside the sandbox, one command at a time
MAX_REPORT = 30_000_000
MAX_CASES = 100_000
MORE = "(more cases)"
"""What lies beyond the most that are kept counts as one case: red where one of them is."""
WRITTEN = "it is data of tests, and was written while they ran"
"""What is said of a file that is told of as a skipped case."""
MAX_CASE_ID = 500
PASSED, FAILED, ERRORED, SKIPPED = "passed", "failed", "errored", "skipped"
RED = (FAILED, ERRORED)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{9,12}\b")
"""Of memory, as runners print it into the names of cases: another one in each run."""
_WORST = (SKIPPED, PASSED, FAILED, ERRORED)  # of a case that was told of twice
_GRAVEST = (PASSED, SKIPPED, FAILED, ERRORED)  # of what one report of a case says
_RESULTS = {"skipped": SKIPPED, "failure": FAILED, "error": ERRORED}
_SAID, _ALL_SAID = 6000, 400_000
_FILES, _PIECE, _DEEPEST, _SECONDS = 200, 1 << 16, 20, 5.0


class Cases:
    """Cases by id: `results`, what red ones `said`, and how many milliseconds they took; `begun`
    have not ended.
    """

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.ms: dict[str, int] = {}
        self.begun: dict[str, None] = {}
        self.ended = False
        """Whether the runner said that it was done."""
        self.told = 0
        """Grows with whatever is told."""
        self._room = _ALL_SAID

    def begin(self, case: str) -> None:
        """A case has begun."""
        self.told += 1
        if len(self.begun) < MAX_CASES:
            self.begun[_short(case)] = None

    def tell(self, case: str, result: str, ms: int = 0, said: str = "") -> None:
        """A case has ended. One that was told of twice counts as the worse of both."""
        self.told += 1
        case = _short(case)
        self.begun.pop(case, None)
        if result not in _WORST or not case:
            return
        if case not in self.results and len(self.results) >= MAX_CASES - 1:
            case = MORE
        self.results[case] = max(result, self.results.get(case, SKIPPED), key=_WORST.index)
        if ms > 0:
            self.ms[case] = min(ms, 1 << 40)
        if said and result in RED:
            self.say(case, said)

    def forget(self, place: str) -> None:
        """What has begun there has ended, whatever it was called."""
        for case in [case for case in self.begun if case.startswith(place)]:
            del self.begun[case]

    def say(self, case: str, said: str) -> None:
        """Keep what a red case printed, after what it said before."""
        case, said = _short(case), _clip(said, min(_SAID, self._room))
        if said:
            self._room -= len(said)
            self.said[case] = f"{self.said[case]}\n{said}" if case in self.said else said

    def next_id(self, case: str) -> str:
        """Return `case`, or with a number where it is taken: runners may give two cases one
        name.
        """
        case, number = _short(case), 1
        while (
            found := case if number == 1 else f"{case} #{number}"
        ) in self.results and number < MAX_CASES:
            number += 1
        return found

    def stop(self, why: str) -> None:
        """What had begun and not ended is red."""
        for case in list(self.begun):
            if not any(
                other.startswith(f"{case}::") and self.results[other] in RED
                for other in self.results
            ):
                self.tell(case, FAILED, said=why)


def _clip(text: str, room: int) -> str:
    """Return at most `room` characters: the beginning and the end, since runners print the error at
    either.
    """
    return text if len(text) <= room else (text[: room // 3] + text[len(text) - room + room // 3 :])


def _short(case: str) -> str:
    return (
        _ADDRESS.sub("0x…", case[: 2 * MAX_CASE_ID])[:MAX_CASE_ID]
        .encode("utf-8", "replace")
        .decode()
    )  # a lone surrogate could not be sent


def read_folder(cases: Cases, folder: str) -> None:
    """Read what our reporters wrote."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))[:_FILES]  # noqa: PTH208 - pathlib costs
    except OSError:
        return
    until = time.monotonic() + _SECONDS
    for name in names:
        cases.ended = False
        for line in _lines(os.path.join(folder, name), until):  # noqa: PTH118 - pathlib costs the executor start time
            _read_line(cases, line)


def _read_line(cases: Cases, line: bytes) -> None:
    try:
        said = json.loads(line)
        if not isinstance(said, dict):
            return
        if "case" in said:
            cases.tell(
                str(said["case"]),
                str(said.get("result")),
                int(said.get("ms") or 0),
                str(said.get("said") or ""),
            )
        elif "start" in said:
            cases.begin(str(said["start"]))
        elif "end" in said:
            cases.ended = True
    except (ValueError, TypeError, OverflowError, RecursionError):
        return


def _pieces(path: str, until: float) -> Iterator[bytes]:
    """Yield what a regular file holds; nothing where there is none, or it is too large or read for
    too long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_REPORT:
            return
        read = 0
        while (
            read <= MAX_REPORT
            and time.monotonic() < until
            and (data := os.read(descriptor, _PIECE))
        ):
            read += len(data)
            yield data
    except OSError:
        return
    finally:
        os.close(descriptor)


def _lines(path: str, until: float) -> Iterator[bytes]:
    left = b""
    for data in _pieces(path, until):
        *lines, left = (left + data).split(b"\n")
        yield from lines
    if left:
        yield left


class _Junit:
    """What a parser tells of a report. Builds no tree: a report that a test wrote may hold millions
    of elements.
    """

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._case: Mapping[str, str] | None = None
        self._result = PASSED
        self._text: list[str] | None = None
        self._depth = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element. Raises `ValueError` where they lie deeper than in any report: a parser
        keeps them all.
        """
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("no report is so deep")
        if tag == "testcase":
            self._case, self._result, self._text = dict(attributes), PASSED, None
        elif tag in _RESULTS:
            self._result = max(self._result, _RESULTS[tag], key=_GRAVEST.index)
            self._text = [str(attributes.get("message") or "")[:_SAID]]

    def data(self, text: str) -> None:
        """Text within an element."""
        if self._text is not None and len(self._text) < _FILES:
            self._text.append(text[:_SAID])

    def end(self, tag: str) -> None:
        """End one."""
        self._depth -= 1
        if tag == "testcase" and self._case is not None:
            case = self._case
            place, name = case.get("classname") or case.get("file") or "", case.get("name") or ""
            try:
                ms = round(float(case.get("time") or 0) * 1000)
            except (ValueError, OverflowError):
                ms = 0
            found = self._cases.next_id(f"{place}::{name}" if place and name else place or name)
            self._cases.tell(found, self._result, ms, "\n".join(self._text or ()).strip())
            self._case, self._text = None, None

    def close(self) -> None:
        """End the report."""


def read_junit(cases: Cases, path: str) -> None:
    """Read a JUnit file, as far as it is one."""
    from xml.etree.ElementTree import (
        ParseError,
        XMLParser,
    )  # costs start time, and few commands write such a report

    parser = XMLParser(target=_Junit(cases))  # noqa: S314 - expat refuses entity bombs, and the size is bounded
    try:
        for data in _pieces(path, time.monotonic() + _SECONDS):
            parser.feed(data)
        parser.close()
    except (ParseError, ValueError):
        return
