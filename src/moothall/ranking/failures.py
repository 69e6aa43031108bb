"""The assertion of a failed case and its place, as one line. Pure.

The text comes from the runner of any language and from the code under test, so every pattern is
bounded. A text in an unknown form gives less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from moothall.ranking.assess import HIT_LIMIT

_TEXT, _MESSAGE, _PATH = 20_000, 300, 400
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_TOP = "/workspace/"
_PLACE = re.compile(
    r'File "(?P<python>[^"\n]{1,400})", line (?P<number>\d{1,9})'
    r"|(?P<path>[^\s()\"'`<>:,]{1,400}\.[A-Za-z]\w{0,5}):(?P<line>\d{1,9})(?!\.?\w)"
)
_OWN = (HIT_LIMIT, "was stopped: ", "the process ended in it")
"""The beginnings of our own reasons, for a case that we stopped or that ended its process."""
_PYTHON_FRAME = re.compile(r'[\s|]*File "[^"\n]{1,400}", line \d+')
_STACK_FRAME = re.compile(r"\s*at (?:async |new )?\S")
_ERROR = re.compile(r"(?<![\w.$])[\w.$]{0,200}(?:Error|Exception)(?: \[\w{1,80}\])?: ")
_AT_END = re.compile(r": [^/:]{1,200} \((\d{1,9}):\d{1,9}\)$")
_GROUP = re.compile(r"\s*\| ?|\s*\+[-+ ].*")
_CODE_FRAME = re.compile(r"\s*>?\s*\d{1,6} \|")
_GO_LINE = re.compile(r"\s{4,}(?P<place>[\w.+-]{1,200}\.go:\d{1,9}): ?(?P<text>.*)")
_GO_MARK = re.compile(r"\s*(?:=== |--- )|(?:FAIL|PASS|ok)\b")
_GO_BUILD = re.compile(r"(?P<place>\S{1,400}\.go:\d{1,9})(?::\d{1,9})?: (?P<text>.+)")
_GO_TELLS = re.compile(
    r"(?i)\b(?:want|wanted|expect|expected|got|fail\w*|error|mismatch|unexpected|not "
    r"equal|differ\w*|invalid|panic)\b"
)
_TESTIFY = re.compile(r"\s*(?P<field>Error Trace|Error|Messages|Test):\s*(?P<text>.*)")
_VALUE = re.compile(
    r"(?i)\s*(?:- |\+ )?(?:expected|received|actual|got|want|left|right|but was)\b[^:\n]{0,20}:"
)
_ONLY_PLACE = re.compile(r"(?:#|at |in )?\s*\S{1,400}:\d{1,9}(?::\d{1,9})?(?::?\s?in .*)?:?")


@dataclass(frozen=True, slots=True)
class Failure:
    """The assertion or error of a case, and the path and line in the repository where it was
    raised.

    `path` is empty if the place is unknown.
    """

    message: str = ""
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Return both in a line."""
        place = f"({self.path}:{self.line})" if self.path else ""
        return " ".join(part for part in (self.message, place) if part)


class Failures:
    """Reads the output of failed cases. `files` are those of the repository; other places, as in a
    library, are skipped.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files: dict[str, list[str]] = {}
        for file in files:
            self._files.setdefault(file.rpartition("/")[2], []).append(file)

    def read(self, case: str, detail: str) -> Failure:
        """Return the failure that `detail`, the output of a case, describes."""
        text = _ANSI.sub("", detail[:_TEXT]).replace("\r\n", "\n")
        lines = [line.rstrip() for line in text.split("\n")]
        if text.startswith(_OWN):
            return Failure(lines[0][:_MESSAGE], *self._first_place(case, lines[1:]))
        for knows, read in _READERS:
            if any(map(knows, lines)):
                message, places = read(lines)
                break
        else:
            message, places = _read_other(lines)
        return Failure(_one_line(message), *self._first_place(case, places))

    def _first_place(self, case: str, lines: Iterable[str]) -> tuple[str, int]:
        """Return the path and line of the first place in the repository that `lines` name, or an
        empty path.
        """
        for line in lines:
            for found in _PLACE.finditer(line):
                number = int(found["number"] or found["line"])
                if path := self._resolve(case, found["python"] or found["path"]):
                    return path, number
        return "", 0

    def _resolve(self, case: str, path: str) -> str:
        """Return the repository's file for a runner's `path`: relative to the root or a folder
        below it, or a bare name.
        """
        path = path.removeprefix("file://")
        if path.startswith("/") and not path.startswith(_TOP):
            return ""
        path = path.removeprefix(_TOP).removeprefix("./")
        folder, _, name = path.rpartition("/")
        named = self._files.get(name, [])
        if path in named:
            return path
        # A folder with a space in its name is cut there.
        near = [file for file in named if not folder or file.endswith(("/" + path, " " + path))]
        subject = case.partition("::")[0]
        own = [
            file for file in near if file == subject or subject.endswith(file.rpartition("/")[0])
        ]
        if len(near) > 1 and own:
            near = [max(own, key=len)]
        return near[0] if len(near) == 1 else path if near else ""


def _one_line(lines: Iterable[str]) -> str:
    """Join the lines of a message; values, as `expected: 5`, are set apart by commas."""
    joined = ""
    for line in lines:
        words = " ".join(line.split())
        if words:
            joined += (
                ", " if joined and joined[-1] not in ":," and _VALUE.match(line) else " "
            ) + words
    joined = joined.strip(" ,")
    return joined if len(joined) <= _MESSAGE else joined[: _MESSAGE - 1] + "…"


_Read = Callable[[list[str]], tuple[Iterable[str], Iterable[str]]]
"""Returns the lines of the message, and those that name places, the most telling first."""


def _read_pytest(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    at = next(number for number, line in enumerate(lines) if line.startswith("E "))
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    if errors[0].endswith("Traceback (most recent call last):"):
        errors.reverse()  # of another process, whose last line is the error
    return errors[:1], [*reversed(lines[:at]), *lines[at:]]


def _read_python(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    if any("Exception Group Traceback" in line for line in lines):
        lines = [_GROUP.sub("", line, count=1) for line in lines]
    at = max(number for number, line in enumerate(lines) if _PYTHON_FRAME.match(line))
    begun = max(
        (
            number
            for number, line in enumerate(lines[:at])
            if line.endswith("Traceback (most recent call last):")
        ),
        default=0,
    )
    after = [line for line in lines[at + 1 :] if line.strip()]
    error = next(
        (number for number, line in enumerate(after) if not line[:1].isspace()), len(after)
    )
    # A message may have several lines; a diff of the values after it only repeats it.
    more = takewhile(
        lambda line: line[:1] not in {" ", "-", "+", "?"} and not line.startswith("First di"),
        after[error + 1 :],
    )
    return [*after[error : error + 1], *more], [
        *reversed(lines[begun : at + 1]),
        *reversed(lines[:begun]),
    ]


def _read_rust(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    at = next(number for number, line in enumerate(lines) if " panicked at " in line)
    after = lines[at].partition(" panicked at ")[2]
    if after.startswith("'"):  # before Rust 1.73: 'message', src/lib.rs:6:17
        whole = "\n".join([after, *lines[at + 1 : at + 6]])
        message, _, place = whole[1:].rpartition("', ")
        return message.split("\n"), [place]
    said = takewhile(
        lambda line: line and not line.startswith(("note: ", "stack backtrace:")), lines[at + 1 :]
    )
    return said, lines[at:]


def _read_should_panic(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    line = next(line for line in lines if line.startswith("note: test did not panic"))
    return [line.removeprefix("note: ").partition(" at ")[0]], [line]


def _read_go(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    told: list[tuple[list[str], str]] = []
    for line in lines:
        if found := _GO_LINE.fullmatch(line):
            told.append(([found["text"]], found["place"]))
        elif told and line[:8].isspace() and not _GO_MARK.match(line):
            told[-1][0].append(line)
    panics = [number for number, line in enumerate(lines) if line.startswith("panic: ")]
    if panics:
        at = panics[0]
        return [re.sub(r" \[recovered.*", "", lines[at])], [
            line for line in lines[at + 1 :] if line.startswith("\t")
        ]
    if told:
        # A test's log looks like its errors: take the first line that reads like an error, or else
        # the last.
        message, place = next((one for one in told if _GO_TELLS.search(" ".join(one[0]))), told[-1])
        return _read_testify(message), [place]
    if built := next(filter(None, map(_GO_BUILD.match, lines)), None):
        return [built["text"]], [built["place"]]
    rest = [line for line in lines if line.strip() and not _GO_MARK.match(line)][-1:]
    unended = any(line.startswith("=== RUN ") for line in lines) and not any(
        "--- FAIL: " in line for line in lines
    )
    return rest or ["the test process ended in it"] * unended, ()


def _read_testify(lines: Sequence[str]) -> Iterable[str]:
    """Return the error of testify's table, and the message after it; other lines as they are."""
    fields: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if found := _TESTIFY.fullmatch(line):
            name = found["field"]
        if name:
            fields.setdefault(name, []).append(found["text"] if found else line)
    if "Error" not in fields:
        return lines
    error = list(takewhile(lambda line: not line.strip().startswith("Diff:"), fields["Error"]))
    return [*error, *(f"({line.strip()})" for line in fields.get("Messages", ())[:1])]


def _read_tap(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    values = [line.strip() for line in lines if line.strip().startswith(("expected: ", "actual: "))]
    return [", ".join(values)], lines


def _read_stack(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    at = next(number for number, line in enumerate(lines) if _STACK_FRAME.match(line))
    head, places = lines[:at], [*lines[at:], *lines[:at]]
    begun, found = next(
        ((number, one) for number, line in enumerate(head) if (one := _ERROR.search(line))),
        (0, None),
    )
    head[begun : begun + 1] = [
        line[found.start() :] if found else line for line in head[begun : begun + 1]
    ]
    if syntax := next(
        (number for number, line in enumerate(head) if line.strip().startswith("SyntaxError: ")), 0
    ):
        begun, places = (
            syntax,
            [_AT_END.sub(r":\1", head[syntax]), *reversed(head[:syntax]), *places],
        )
    said = takewhile(lambda line: not _CODE_FRAME.match(line), head[begun:])
    return [line for line in said if not line.lstrip().startswith("●")], places


def _read_other(lines: list[str]) -> tuple[Iterable[str], Iterable[str]]:
    """Read an unknown form: its first paragraph if it names places, else its last line."""
    shown = [
        line
        for line in lines
        if line.strip()
        and not line.startswith("note: run with")
        and not line.lstrip().startswith("●")
    ]
    said = [line for line in shown if not _ONLY_PLACE.fullmatch(line.strip())]
    if len(said) == len(shown):
        return said[-1:], lines
    first = next((number for number, line in enumerate(lines) if line in said), 0)
    return [line for line in takewhile(str.strip, lines[first:]) if line in said], lines


_READERS: Sequence[tuple[Callable[[str], object], _Read]] = (
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
