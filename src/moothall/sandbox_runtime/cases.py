"""The test cases of a run, read from JSON lines of our reporters or from JUnit XML. Findings of
linters and type checkers, one line each, without line numbers: `path: message`.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# Findings of linters and type checkers, one line each, without line numbers: `path: message`.
#
# Standard library only; read inside the sandbox. Output is hostile, and never makes reading fail.


MAX_FINDINGS = 5000
_MAX_FINDING_CHARS = 1000
_PROGRAMS = frozenset(
    {
        "ruff",
        "flake8",
        "pylint",
        "mypy",
        "pyright",
        "basedpyright",
        "pycodestyle",
        "pydocstyle",
        "pyflakes",
        "black",
        "isort",
        "bandit",
        "vulture",
        "ty",
        "pyrefly",
        "eslint",
        "tsc",
        "biome",
        "prettier",
        "standard",
        "xo",
        "oxlint",
        "stylelint",
        "golangci-lint",
        "staticcheck",
        "gofmt",
        "goimports",
        "rustfmt",
        "shellcheck",
        "yamllint",
        "codespell",
        "cpplint",
        "clang-tidy",
        "lint-imports",
    }
)
_RUNNERS = frozenset(
    {
        "npx",
        "uv",
        "uvx",
        "poetry",
        "pdm",
        "hatch",
        "pnpm",
        "yarn",
        "npm",
        "exec",
        "run",
        "python",
        "python3",
        "-m",
    }
)
_LOCATED = re.compile(
    r"(?P<path>[^\s:()][^:()\n]{0,300}?)(?::\d+(?::\d+)?(?:-\d+(?::\d+)?)?:?|\(\d+(?:,\d+)?\):) "
    r"*(?:-\s*)?(?P<message>\S.*)$"
)
_ARROW = re.compile(r"\s*--> (?P<path>[^:\n]{1,300}):\d+")
_MESSAGE = re.compile(r"(?:error|warning|[A-Z]{1,4}\d{2,5})\b.*$")
_INDENTED_MESSAGE = re.compile(r"\s+\d+:\d+\s+(?P<message>(?:error|warning|info)\b.*|\S.*)$")
_FILE_HEADING = re.compile(r"\s*(?P<path>[\w@./\\-]{1,300}\.\w{1,6})$")
_UNFORMATTED = re.compile(
    r"(?:[Ww]ould reformat:?|ERROR:|\[warn\]|Diff in) (?P<path>[\w@./\\-]+\.\w{1,6})(?::\d+:?| "
    r".*)?$"
)
_LINE_NUMBER = re.compile(r"\b(line|column|col) \d+\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def is_linter(argv: Sequence[str]) -> bool:
    """Return whether a command is a known linter, formatter or type checker."""
    words = [word.rpartition("/")[2] for word in argv[:8]]
    if words[:2] in (["go", "vet"], ["cargo", "clippy"], ["cargo", "fmt"], ["go", "fmt"]):
        return True
    program = next(
        (word for word in words if word not in _RUNNERS and not word.startswith("-")), ""
    )
    return program in _PROGRAMS


def findings(output: str) -> list[str]:
    """Return the findings, in the order of the output."""
    lines: list[str] = []
    for path, message in _read_findings(output):
        if len(lines) >= MAX_FINDINGS:
            break
        relative_path = (
            path.strip().replace("\\", "/").removeprefix("/workspace/").removeprefix("./")
        )
        lines.append(
            f"{relative_path}: {_LINE_NUMBER.sub('line', ' '.join(message.split()))}"[
                :_MAX_FINDING_CHARS
            ]
        )
    return lines


def _read_findings(output: str) -> Iterator[tuple[str, str]]:  # noqa: C901 - one branch for each form of a line
    message = heading_path = ""
    for raw_line in output.split("\n"):
        line = _COLOUR.sub("", raw_line[: 2 * _MAX_FINDING_CHARS]).rstrip()
        if match := _ARROW.match(line):
            if message:
                yield match["path"], message
            message = ""
        elif match := _UNFORMATTED.match(line):
            yield match["path"], "is not formatted"
        elif heading_path and (match := _INDENTED_MESSAGE.match(line)):
            yield heading_path, match["message"]
        elif match := _LOCATED.match(line):
            if not match["message"].startswith("note:"):
                yield match["path"], match["message"]
        elif match := _FILE_HEADING.match(line):
            heading_path = match["path"]
        elif _MESSAGE.match(line):
            message = line
        elif not line:
            heading_path = ""


# The test cases of a run, read from JSON lines of our reporters or from JUnit XML.
#
# Standard library only: read inside the sandbox. The code under test may have written anything to
# these files. Reading is therefore bounded, follows no links, and no content makes it fail.


FOLDER = "/tmp/moothall-reports"  # noqa: S108 - inside the sandbox, one command at a time
MAX_REPORT = 30_000_000
MAX_CASES = 100_000
MORE = "(more cases)"
"""All cases beyond the limit count as one case, which failed if one of them failed."""
WRITTEN = "it is data of tests, and was written while they ran"
"""The detail of a file that is reported as a skipped case."""
MAX_CASE_ID = 500
PASSED, FAILED, ERRORED, SKIPPED = "passed", "failed", "errored", "skipped"
FAILED_RESULTS = (FAILED, ERRORED)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{9,12}\b")
"""A memory address in a case's name, which differs in each run."""
_WORST = (SKIPPED, PASSED, FAILED, ERRORED)  # of a case that was reported twice
_GRAVEST = (PASSED, SKIPPED, FAILED, ERRORED)  # within one report of a case
_RESULTS = {"skipped": SKIPPED, "failure": FAILED, "error": ERRORED}
_DETAIL_CHARS, _TOTAL_DETAIL_CHARS = 6000, 400_000
_MAX_FILES, _CHUNK_BYTES, _MAX_DEPTH, _READ_SECONDS = 200, 1 << 16, 20, 5.0


class Cases:
    """Cases by id: their `results`, the `details` of failed ones, and their durations in `ms`.
    `running` cases have not ended.
    """

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.details: dict[str, str] = {}
        self.ms: dict[str, int] = {}
        self.running: dict[str, None] = {}
        self.is_finished = False
        """Whether the runner reported its end."""
        self.event_count = 0
        """The number of reported events."""
        self._detail_room = _TOTAL_DETAIL_CHARS

    def start_case(self, case: str) -> None:
        """Note that a case has started."""
        self.event_count += 1
        if len(self.running) < MAX_CASES:
            self.running[_shorten_id(case)] = None

    def add_result(self, case: str, result: str, ms: int = 0, detail: str = "") -> None:
        """Note that a case has ended. If a case is reported twice, the worse result counts."""
        self.event_count += 1
        case = _shorten_id(case)
        self.running.pop(case, None)
        if result not in _WORST or not case:
            return
        if case not in self.results and len(self.results) >= MAX_CASES - 1:
            case = MORE
        self.results[case] = max(result, self.results.get(case, SKIPPED), key=_WORST.index)
        if ms > 0:
            self.ms[case] = min(ms, 1 << 40)
        if detail and result in FAILED_RESULTS:
            self.add_detail(case, detail)

    def forget_running(self, place: str) -> None:
        """Forget the running cases whose ids begin with `place`."""
        for case in [case for case in self.running if case.startswith(place)]:
            del self.running[case]

    def add_detail(self, case: str, detail: str) -> None:
        """Keep the output of a failed case, after its earlier output."""
        case, detail = _shorten_id(case), _clip(detail, min(_DETAIL_CHARS, self._detail_room))
        if detail:
            self._detail_room -= len(detail)
            self.details[case] = (
                f"{self.details[case]}\n{detail}" if case in self.details else detail
            )

    def next_id(self, case: str) -> str:
        """Return `case`, with a number if the id is taken: runners may give two cases one name."""
        case, number = _shorten_id(case), 1
        while (
            candidate := case if number == 1 else f"{case} #{number}"
        ) in self.results and number < MAX_CASES:
            number += 1
        return candidate

    def fail_running(self, reason: str) -> None:
        """Mark all running cases as failed."""
        for case in list(self.running):
            if not any(
                result_case.startswith(f"{case}::") and self.results[result_case] in FAILED_RESULTS
                for result_case in self.results
            ):
                self.add_result(case, FAILED, detail=reason)


def _clip(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters, from the beginning and the end, because runners print
    errors at either.
    """
    return (
        text
        if len(text) <= max_chars
        else (text[: max_chars // 3] + text[len(text) - max_chars + max_chars // 3 :])
    )


def _shorten_id(case: str) -> str:
    return (
        _ADDRESS.sub("0x…", case[: 2 * MAX_CASE_ID])[:MAX_CASE_ID]
        .encode("utf-8", "replace")
        .decode()
    )  # lone surrogates cannot be sent


def read_folder(cases: Cases, folder: str) -> None:
    """Read the files of our reporters."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))[:_MAX_FILES]  # noqa: PTH208 - pathlib costs
    except OSError:
        return
    until = time.monotonic() + _READ_SECONDS
    for name in names:
        cases.is_finished = False
        for line in _lines(os.path.join(folder, name), until):  # noqa: PTH118 - pathlib costs the executor start time
            _read_line(cases, line)


def _read_line(cases: Cases, line: bytes) -> None:
    try:
        event = json.loads(line)
        if not isinstance(event, dict):
            return
        if "case" in event:
            cases.add_result(
                str(event["case"]),
                str(event.get("result")),
                int(event.get("ms") or 0),
                str(event.get("detail") or ""),
            )
        elif "start" in event:
            cases.start_case(str(event["start"]))
        elif "end" in event:
            cases.is_finished = True
    except (ValueError, TypeError, OverflowError, RecursionError):
        return


def _read_chunks(path: str, read_until: float) -> Iterator[bytes]:
    """Yield the content of a regular file; nothing if it is missing, too large or takes too long to
    read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return
    try:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_size > MAX_REPORT:
            return
        total_read = 0
        while (
            total_read <= MAX_REPORT
            and time.monotonic() < read_until
            and (data := os.read(descriptor, _CHUNK_BYTES))
        ):
            total_read += len(data)
            yield data
    except OSError:
        return
    finally:
        os.close(descriptor)


def _lines(path: str, read_until: float) -> Iterator[bytes]:
    partial_line = b""
    for data in _read_chunks(path, read_until):
        *lines, partial_line = (partial_line + data).split(b"\n")
        yield from lines
    if partial_line:
        yield partial_line


class _Junit:
    """A target for an XML parser. It builds no tree, because a report written by a test may have
    millions of elements.
    """

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._case: Mapping[str, str] | None = None
        self._result = PASSED
        self._text: list[str] | None = None
        self._depth = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element. Raises `ValueError` if elements are nested deeper than in any real
        report, because the parser keeps all open elements.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("no report is so deep")
        if tag == "testcase":
            self._case, self._result, self._text = dict(attributes), PASSED, None
        elif tag in _RESULTS:
            self._result = max(self._result, _RESULTS[tag], key=_GRAVEST.index)
            self._text = [str(attributes.get("message") or "")[:_DETAIL_CHARS]]

    def data(self, text: str) -> None:
        """Add the text of an element."""
        if self._text is not None and len(self._text) < _MAX_FILES:
            self._text.append(text[:_DETAIL_CHARS])

    def end(self, tag: str) -> None:
        """End an element."""
        self._depth -= 1
        if tag == "testcase" and self._case is not None:
            case = self._case
            group, name = case.get("classname") or case.get("file") or "", case.get("name") or ""
            try:
                ms = round(float(case.get("time") or 0) * 1000)
            except (ValueError, OverflowError):
                ms = 0
            case_id = self._cases.next_id(f"{group}::{name}" if group and name else group or name)
            self._cases.add_result(case_id, self._result, ms, "\n".join(self._text or ()).strip())
            self._case, self._text = None, None

    def close(self) -> None:
        """End the report."""


def read_junit(cases: Cases, path: str) -> None:
    """Read a JUnit file, as far as it is valid."""
    from xml.etree.ElementTree import (
        ParseError,
        XMLParser,
    )  # costs start time, and few commands write such a report

    parser = XMLParser(target=_Junit(cases))  # noqa: S314 - expat refuses entity bombs, and the size is bounded
    try:
        for data in _read_chunks(path, time.monotonic() + _READ_SECONDS):
            parser.feed(data)
        parser.close()
    except (ParseError, ValueError):
        return
