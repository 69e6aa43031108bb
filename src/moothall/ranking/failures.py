"""What failed runs say, read from their output: the assertion of a failed case and its location,
time limits that were hit on a busy machine, and obstacles that no candidate could remove. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from moothall.domain.evidence import FAILED_OUTCOMES, CheckRun, Verdict
from moothall.ranking.assess import HIT_LIMIT
from moothall.ranking.criteria import sanitize_line
from moothall.sandbox_runtime.processes import BUSY

# The assertion of a failed case and its location, as one line.
#
# The text comes from test runners of any language and from the code under test, so every pattern is
# bounded. A text in an unknown format yields less.


_MAX_TEXT_CHARS = 20_000
_MAX_MESSAGE_CHARS = 300
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_WORKSPACE_ROOT = "/workspace/"
_LOCATION = re.compile(
    r'File "(?P<python>[^"\n]{1,400})", line (?P<number>\d{1,9})'
    r"|(?P<path>[^\s()\"'`<>:,]{1,400}\.[A-Za-z]\w{0,5}):(?P<line>\d{1,9})(?!\.?\w)"
)
_OWN_REASONS = (HIT_LIMIT, "was stopped: ", "the process ended in it")
"""Prefixes of our own reasons, for a case that we stopped or that ended its process."""
_PYTHON_FRAME = re.compile(r'[\s|]*File "[^"\n]{1,400}", line \d+')
_STACK_FRAME = re.compile(r"\s*at (?:async |new )?\S")
_ERROR = re.compile(r"(?<![\w.$])[\w.$]{0,200}(?:Error|Exception)(?: \[\w{1,80}\])?: ")
_AT_END = re.compile(r": [^/:]{1,200} \((\d{1,9}):\d{1,9}\)$")
_GROUP = re.compile(r"\s*\| ?|\s*\+[-+ ].*")
_CODE_FRAME = re.compile(r"\s*>?\s*\d{1,6} \|")
_GO_LINE = re.compile(r"\s{4,}(?P<place>[\w.+-]{1,200}\.go:\d{1,9}): ?(?P<text>.*)")
_GO_MARK = re.compile(r"\s*(?:=== |--- )|(?:FAIL|PASS|ok)\b")
_GO_BUILD = re.compile(r"(?P<place>\S{1,400}\.go:\d{1,9})(?::\d{1,9})?: (?P<text>.+)")
_GO_ERROR_WORDS = re.compile(
    r"(?i)\b(?:want|wanted|expect|expected|got|fail\w*|error|mismatch|unexpected|not "
    r"equal|differ\w*|invalid|panic)\b"
)
_TESTIFY_FIELD = re.compile(r"\s*(?P<field>Error Trace|Error|Messages|Test):\s*(?P<text>.*)")
_VALUE_LINE = re.compile(
    r"(?i)\s*(?:- |\+ )?(?:expected|received|actual|got|want|left|right|but was)\b[^:\n]{0,20}:"
)
_ONLY_LOCATION = re.compile(r"(?:#|at |in )?\s*\S{1,400}:\d{1,9}(?::\d{1,9})?(?::?\s?in .*)?:?")


@dataclass(frozen=True, slots=True)
class Failure:
    """The assertion or error of a case, and its location in the repository.

    path: '' if the location is unknown.
    """

    message: str = ""
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Return the message and the location in one line."""
        location = f"({self.path}:{self.line})" if self.path else ""
        return " ".join(part for part in (self.message, location) if part)


class FailureReader:
    """Reads the output of failed cases.

    files: the files of the repository. Other locations, such as those in a library, are skipped.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files: dict[str, list[str]] = {}
        for file in files:
            self._files.setdefault(file.rpartition("/")[2], []).append(file)

    def read_failure(self, case: str, detail: str) -> Failure:
        """Return the failure of a case from its output `detail`."""
        text = _ANSI.sub("", detail[:_MAX_TEXT_CHARS]).replace("\r\n", "\n")
        lines = [line.rstrip() for line in text.split("\n")]
        if text.startswith(_OWN_REASONS):
            return Failure(lines[0][:_MAX_MESSAGE_CHARS], *self._find_location(case, lines[1:]))
        for matches, read_format in _READERS:
            if any(map(matches, lines)):
                message, location_lines = read_format(lines)
                break
        else:
            message, location_lines = _read_other(lines)
        return Failure(_one_line(message), *self._find_location(case, location_lines))

    def _find_location(self, case: str, lines: Iterable[str]) -> tuple[str, int]:
        """Return the path and line of the first location in the repository in `lines`; an empty
        path if there is none.
        """
        for line in lines:
            for match in _LOCATION.finditer(line):
                number = int(match["number"] or match["line"])
                if path := self._resolve_path(case, match["python"] or match["path"]):
                    return path, number
        return "", 0

    def _resolve_path(self, case: str, path: str) -> str:
        """Return the repository's file for the path of a runner, which is relative to the root or
        to a folder, or a bare file name.
        """
        path = path.removeprefix("file://")
        if path.startswith("/") and not path.startswith(_WORKSPACE_ROOT):
            return ""
        path = path.removeprefix(_WORKSPACE_ROOT).removeprefix("./")
        folder, _, name = path.rpartition("/")
        same_name = self._files.get(name, [])
        if path in same_name:
            return path
        # A runner's path is cut at a space in a folder name.
        matching = [
            file for file in same_name if not folder or file.endswith(("/" + path, " " + path))
        ]
        container = case.partition("::")[0]
        in_container = [
            file
            for file in matching
            if file == container or container.endswith(file.rpartition("/")[0])
        ]
        if len(matching) > 1 and in_container:
            matching = [max(in_container, key=len)]
        return matching[0] if len(matching) == 1 else path if matching else ""


def _one_line(lines: Iterable[str]) -> str:
    """Join the lines of a message; separate values, such as `expected: 5`, by commas."""
    message = ""
    for line in lines:
        text = " ".join(line.split())
        if text:
            message += (
                ", " if message and message[-1] not in ":," and _VALUE_LINE.match(line) else " "
            ) + text
    message = message.strip(" ,")
    return (
        message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 1] + "…"
    )


_ReadFormat = Callable[[list[str]], tuple[Iterable[str], Iterable[str]]]
"""Returns the lines of the message, and those that name locations, the most specific first."""


def _read_pytest(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    first_error = next(number for number, line in enumerate(lines) if line.startswith("E "))
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    if errors[0].endswith("Traceback (most recent call last):"):
        errors.reverse()  # a traceback of another process, with the error in its last line
    return errors[:1], [*reversed(lines[:first_error]), *lines[first_error:]]


def _read_python(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    if any("Exception Group Traceback" in line for line in lines):
        lines = [_GROUP.sub("", line, count=1) for line in lines]
    last_frame = max(number for number, line in enumerate(lines) if _PYTHON_FRAME.match(line))
    start = max(
        (
            number
            for number, line in enumerate(lines[:last_frame])
            if line.endswith("Traceback (most recent call last):")
        ),
        default=0,
    )
    following = [line for line in lines[last_frame + 1 :] if line.strip()]
    error_index = next(
        (number for number, line in enumerate(following) if not line[:1].isspace()), len(following)
    )
    # A message may have several lines. A diff of the values after it repeats it.
    continuation = takewhile(
        lambda line: line[:1] not in {" ", "-", "+", "?"} and not line.startswith("First di"),
        following[error_index + 1 :],
    )
    return [*following[error_index : error_index + 1], *continuation], [
        *reversed(lines[start : last_frame + 1]),
        *reversed(lines[:start]),
    ]


def _read_rust(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    panic_index = next(number for number, line in enumerate(lines) if " panicked at " in line)
    panic_text = lines[panic_index].partition(" panicked at ")[2]
    if panic_text.startswith("'"):  # before Rust 1.73: 'message', src/lib.rs:6:17
        text = "\n".join([panic_text, *lines[panic_index + 1 : panic_index + 6]])
        message, _, location = text[1:].rpartition("', ")
        return message.split("\n"), [location]
    message_lines = takewhile(
        lambda line: line and not line.startswith(("note: ", "stack backtrace:")),
        lines[panic_index + 1 :],
    )
    return message_lines, lines[panic_index:]


def _read_should_panic(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    line = next(line for line in lines if line.startswith("note: test did not panic"))
    return [line.removeprefix("note: ").partition(" at ")[0]], [line]


def _read_go(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    logged: list[tuple[list[str], str]] = []
    for line in lines:
        if match := _GO_LINE.fullmatch(line):
            logged.append(([match["text"]], match["place"]))
        elif logged and line[:8].isspace() and not _GO_MARK.match(line):
            logged[-1][0].append(line)
    panics = [number for number, line in enumerate(lines) if line.startswith("panic: ")]
    if panics:
        first_panic = panics[0]
        return [re.sub(r" \[recovered.*", "", lines[first_panic])], [
            line for line in lines[first_panic + 1 :] if line.startswith("\t")
        ]
    if logged:
        # Log lines of a test look like its errors: take the first one that reads like an error, or
        # else the last one.
        message, location = next(
            (entry for entry in logged if _GO_ERROR_WORDS.search(" ".join(entry[0]))), logged[-1]
        )
        return _read_testify(message), [location]
    if build_error := next(filter(None, map(_GO_BUILD.match, lines)), None):
        return [build_error["text"]], [build_error["place"]]
    last_lines = [line for line in lines if line.strip() and not _GO_MARK.match(line)][-1:]
    is_unfinished = any(line.startswith("=== RUN ") for line in lines) and not any(
        "--- FAIL: " in line for line in lines
    )
    return last_lines or ["the test process ended in it"] * is_unfinished, ()


def _read_testify(lines: Sequence[str]) -> Iterable[str]:
    """Return the error from a table of testify, and the message after it; other lines unchanged."""
    fields: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if match := _TESTIFY_FIELD.fullmatch(line):
            name = match["field"]
        if name:
            fields.setdefault(name, []).append(match["text"] if match else line)
    if "Error" not in fields:
        return lines
    error = list(takewhile(lambda line: not line.strip().startswith("Diff:"), fields["Error"]))
    return [*error, *(f"({line.strip()})" for line in fields.get("Messages", ())[:1])]


def _read_tap(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    values = [line.strip() for line in lines if line.strip().startswith(("expected: ", "actual: "))]
    return [", ".join(values)], lines


def _read_stack(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    first_frame = next(number for number, line in enumerate(lines) if _STACK_FRAME.match(line))
    head, location_lines = lines[:first_frame], [*lines[first_frame:], *lines[:first_frame]]
    error_index, match = next(
        ((number, error) for number, line in enumerate(head) if (error := _ERROR.search(line))),
        (0, None),
    )
    head[error_index : error_index + 1] = [
        line[match.start() :] if match else line for line in head[error_index : error_index + 1]
    ]
    if syntax_index := next(
        (number for number, line in enumerate(head) if line.strip().startswith("SyntaxError: ")), 0
    ):
        error_index, location_lines = (
            syntax_index,
            [
                _AT_END.sub(r":\1", head[syntax_index]),
                *reversed(head[:syntax_index]),
                *location_lines,
            ],
        )
    message_lines = takewhile(lambda line: not _CODE_FRAME.match(line), head[error_index:])
    return [line for line in message_lines if not line.lstrip().startswith("●")], location_lines


def _read_other(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    """Read an unknown format: the first paragraph if it names locations, else the last line."""
    content_lines = [
        line
        for line in lines
        if line.strip()
        and not line.startswith("note: run with")
        and not line.lstrip().startswith("●")
    ]
    message_lines = [line for line in content_lines if not _ONLY_LOCATION.fullmatch(line.strip())]
    if len(message_lines) == len(content_lines):
        return message_lines[-1:], lines
    first = next((number for number, line in enumerate(lines) if line in message_lines), 0)
    return [line for line in takewhile(str.strip, lines[first:]) if line in message_lines], lines


_READERS: Sequence[tuple[Callable[[str], object], _ReadFormat]] = (
    (lambda line: line.startswith("E "), _read_pytest),
    (_PYTHON_FRAME.match, _read_python),
    (lambda line: " panicked at " in line, _read_rust),
    (lambda line: line.startswith("note: test did not panic"), _read_should_panic),
    (
        lambda line: (
            line.startswith(("=== RUN ", "=== NAME ", "--- FAIL: ")) or _GO_BUILD.match(line)
        ),
        _read_go,
    ),
    (lambda line: line.startswith(("actual: ", "operator: ")), _read_tap),
    (_STACK_FRAME.match, _read_stack),
)


# Time limits that a check hit on a busy machine. They prove nothing about the code, so the check is
# run again alone.


# Our own limits if they were hit because the machine was busy, and the messages of runners and
# clients about a project's limits: jest, mocha, vitest, node:test, node-tap, pytest-timeout, Go,
# nextest. A line `timeout: 30000` is an option, as node-tap prints below every failed file.
_TIME_LIMIT = re.compile(
    rf"{HIT_LIMIT} [^\n]{{0,40}}{BUSY}|\btimed?[ -]?out(?![\"']?\s*[:=]\s*\d+,?\s*$)"
    r"|^\s*expired: |exceeded (?:a |the |its )?(?:timeout|deadline|time)|deadline exceeded"
    r"|too long\b",
    re.IGNORECASE | re.MULTILINE,
)
_MAX_READ_CHARS = 20_000
_BUSY = (
    "a time limit was hit while the machine was busy, which proves nothing about the code; free "
    "some cores, or raise workspace.check_floor_seconds"
)


def hit_limit_under_load(run: CheckRun, base: CheckRun | None = None) -> bool:
    """True if a check hit a time limit while the machine was busy. Cases that fail on the base do
    not count.
    """
    if not run.contended:
        return False
    return (
        run.status == "timeout"
        or bool(stopped_cases(run, base))
        or (_is_silent(run) and _names_limit(run.output))
    )


def as_errored(run: CheckRun, base: CheckRun | None = None) -> CheckRun:
    """Return the run as unfinished: no case counts as failed because of a time limit."""
    stopped = stopped_cases(run, base)
    headline, rest = (
        (run.output.partition("\n")[::2]) if run.status == "timeout" else (run.check, run.output)
    )
    return replace(
        run,
        verdict=Verdict.ERRORED,
        status="timeout",
        cases={
            case: "errored" if case in stopped else outcome for case, outcome in run.cases.items()
        },
        output=f"{headline}: {_BUSY}\n{rest}",
    )


def stopped_cases(run: CheckRun, base: CheckRun | None = None) -> Sequence[str]:
    """Return the failed cases whose output names a time limit and that do not fail on the base."""
    base_outcomes = base.cases if base else {}
    return [
        case
        for case, outcome in run.cases.items()
        if outcome in FAILED_OUTCOMES
        and base_outcomes.get(case) not in FAILED_OUTCOMES
        and _names_limit(run.details.get(case, ""))
    ]


def _is_silent(run: CheckRun) -> bool:
    return not run.cases and run.status == "success" and run.verdict is Verdict.FAILED


def _names_limit(text: str) -> bool:
    return _TIME_LIMIT.search(text[-_MAX_READ_CHARS:]) is not None


# Obstacles that prevent the checks of a base from judging, and that no candidate could remove; and
# slow test suites. Pure.


_MISSING_MODULE = re.compile(r"No module named '?(?P<name>\w+)\b(?!\.)")
_MAX_LINE_CHARS = 300
_SLOW_SUITE_MS = 120_000
_LARGE_SUITE_CASES = 20_000
_DJANGO_UNCONFIGURED = re.compile(
    r"ImproperlyConfigured: Requested settings?\b.* settings are not configured"
)
# Messages of package managers, toolchains and drivers. No test would print one of them itself.
_ENVIRONMENT_ERROR = re.compile(
    r"(?m)^.*(?:"
    r"\bERR_PNPM_(?!RECURSIVE_RUN|TEST)\w+"
    r"|npm (?:ERR!|error) code "
    r"(?:ENOTCACHED|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ECONNRESET|EROFS|EBADENGINE)"
    r"|npm error code EBADDEVENGINES"
    r"|Error when performing the request to https?://"
    r"|EROFS: read-only file system.*/(?:corepack|pnpm|yarn|\.npm)\b"
    r"|Network access disabled by the environment"
    r"|This project's package\.json defines \"packageManager\":"
    r"|There appears to be trouble with your network connection"
    r"|The project in \S+ doesn't seem to have been installed"
    r"|doesn't seem to be present in your lockfile"
    r"|YN0001: .*RequestError"
    r"|The engine \"node\" is incompatible with this module"
    r"|error: Failed to fetch: `"
    r"|No solution found when resolving"
    r"|error: Request failed after \d+ retries"
    r"|All attempts to connect to \S+ failed"
    r"|ERROR: (?:Could not find a version that satisfies|No matching distribution found)"
    r"|module lookup disabled by GOPROXY=off"
    r"|go: (?:download|.* requires) go ?>?=? ?\d.*(?:GOTOOLCHAIN|toolchain)"
    r"|but --offline was specified"
    r"|error: toolchain '[^']+' is not installed"
    r"|Cannot connect to the Docker daemon"
    r"|OperationalError: .*(?:connection to server (?:at|on)|could not connect to server|Can't "
    r"connect to (?:local )?(?:MySQL|server))"
    r").*$"
)


def failure_outputs(run: CheckRun) -> list[str]:
    """Return the output of each failed case."""
    return [
        run.details.get(case, "")
        for case, outcome in run.cases.items()
        if outcome in FAILED_OUTCOMES
    ]


def find_environment_error(run: CheckRun) -> str:
    """Return the error of the environment that prevented a check from running any case, or ''.

    If cases are reported, each failed one must contain such a line.
    """
    matches = [_ENVIRONMENT_ERROR.search(text) for text in failure_outputs(run) or [run.output]]
    if not run.exit_code or not matches[0] or not all(matches):
        return ""
    return sanitize_line(matches[0][0].strip(), _MAX_LINE_CHARS)


def is_django_unconfigured(run: CheckRun) -> bool:
    """True if every failed case could not load because Django's settings are not configured."""
    outputs = failure_outputs(run)
    return bool(outputs) and all(_DJANGO_UNCONFIGURED.search(text) for text in outputs)


def suggest_smaller_suite(run: CheckRun, argv: Sequence[str]) -> str:
    """Return advice for a suite that takes minutes, or ''."""
    if (
        not run.cases
        or run.findings
        or (
            run.duration_ms < _SLOW_SUITE_MS
            and len(run.cases) < _LARGE_SUITE_CASES
            and run.status != "timeout"
        )
    ):
        return ""
    duration = f"{run.duration_ms / 60_000:.1f} minutes for {len(run.cases):,} tests"
    ms_by_folder: Counter[str] = Counter()
    for case, ms in run.durations.items():
        if "/" in (path := case.partition("::")[0]):
            ms_by_folder[path.rpartition("/")[0]] += ms
    total = sum(ms_by_folder.values())
    slowest_folders = ", ".join(
        f"{folder} ({ms * 100 // total} %)" for folder, ms in ms_by_folder.most_common(3) if total
    )
    slowest_part = f" Most of the time goes to {slowest_folders}." if slowest_folders else ""
    return (
        f"Each candidate is judged by the whole suite: {duration}.{slowest_part} For a task that "
        f"concerns a part of it, name the test files near the change in a profile, [checks] "
        f'{run.check} = "{sanitize_line(shlex.join(argv))} PATH…", and pass it with --profile FILE.'
    )


def find_folder_off_path(run: CheckRun, files: Sequence[str]) -> tuple[str, str]:
    """Return a module of the project that the failed cases cannot import, and its folder; two empty
    strings if there is none.

    The folder is one like `src`, which is not a package itself, is not on the path, and whose
    module is not installed.
    """
    names = [
        match["name"] if (match := _MISSING_MODULE.search(text)) else ""
        for text in failure_outputs(run) or [run.output]
    ]
    if not all(names):
        return "", ""
    existing_paths = set(files)
    for name in dict.fromkeys(names):
        suffixes = (f"/{name}/__init__.py", f"/{name}.py")
        folders = {
            path.removesuffix(suffix)
            for path in files
            for suffix in suffixes
            if path.endswith(suffix)
        }
        is_top_level = any(path in existing_paths for path in (f"{name}.py", f"{name}/__init__.py"))
        candidates = sorted(
            folder for folder in folders if f"{folder}/__init__.py" not in existing_paths
        )
        if not is_top_level and candidates:
            return name, min(candidates, key=lambda folder: (folder.count("/"), folder))
    return "", ""
