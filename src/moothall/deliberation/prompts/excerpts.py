"""Excerpts for prompts: examples in the task, what fails on the base, and a survey of the base."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import LRUCache

from moothall import telemetry
from moothall.domain.codec import list_of
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import digest
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import MoothallError
from moothall.ports import Workspaces
from moothall.sandbox_runtime.syntax import language_of

# Examples in a task's text: calls with their expected results, both literally in the text. Pure.
#
# A call with its present result is no example, so prose needs a word such as "should", or an arrow
# or comparison.


_MAX_TASK_CHARS, _MAX_EXAMPLES, _MAX_EXAMPLE_CHARS = 50_000, 20, 300
_ARGUMENTS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
_CALL = rf"(?:new )?[A-Za-z_][\w.]*(?:(?:::|!)\w*)*{_ARGUMENTS}(?:\.\w+(?:{_ARGUMENTS})?)*"
_VALUE = (
    r"`(?P<code>[^`\n]+)`|(?P<plain>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[\[{(][^\n`]*?[\]})](?=[\s.,;]|$)"
    r"|-?\d[\w.]*\w|-?\d|(?:None|True|False|nil|null|undefined|true|false|NaN)\b|(?:Ok|Err|Some)\([^\n()]*\)|[A-Z]\w*(?:Error|Exception)\b)"
)
_REQUEST_PHRASE = (
    r"(?:should|must|shall|has to|have to|ought to|needs? to|is (?:expected|supposed) "
    r"to)\s+(?:now |then |also |always )*"
    r"(?:be|return|give|yield|equal|evaluate to|result in|raise|throw|print|output|become)"
)
_PROSE = re.compile(
    rf"`?(?P<call>{_CALL})`?\s+{_REQUEST_PHRASE}\s+(?:an? |the "
    rf")?(?:(?:string|value|list|number|error)\s+)?(?:{_VALUE})"
)
_ARROW = re.compile(
    rf"`?(?P<call>{_CALL})`?\s*(?:==|===|=>|->|→|↦|(?:#|//)\s*(?:=>|->|→))\s*(?:{_VALUE})"
)
_ASSERTION = re.compile(
    r"(?m)^[ \t]*(?:>>> )?(?P<line>(?:assert(?:_eq|_ne)?!\(.*\);?"
    r"|(?:self\.)?assert\w*\(.+\)|assert\.\w+\(.+\);?|expect\(.+\)\.(?:not\.)?to\w*\(.*\);?))[ "
    r"\t]*$"
)
_SESSION = re.compile(
    r"(?m)^(?P<inset>[ \t]*)>>> (?P<call>.+)\n(?P<more>(?:(?P=inset)\.\.\. "
    r"?.*\n)*)(?P<output>(?:(?!(?P=inset)>>>|[ \t]*```|[ \t]*$).*(?:\n|\Z))*)"
)
_LITERAL = re.compile(
    r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'|(?<![\w.])(\d[\w.]*\w|\d)(?![\w])"
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class TaskExample:
    """A call as the task writes it, and its expected result. Of an assertion, `call` is the whole
    line and `result` is ''.
    """

    call: str
    result: str = ""

    def __str__(self) -> str:
        return f"{self.call} gives {self.result}" if self.result else self.call

    def is_in(self, tests: str) -> bool:
        """Return whether tests contain the called name and each literal of the example."""
        names = _NAME.findall(self.call.partition("(")[0]) if self.result else []
        literals = [
            next(filter(None, match.groups()), "")
            for match in _LITERAL.finditer(f"{self.call} {self.result}")
        ]
        return all(name in tests for name in names[-1:]) and all(
            literal in tests for literal in literals
        )


def find_examples(task: str) -> tuple[TaskExample, ...]:
    """Return the distinct examples of a task, in the order of its text."""
    matches = sorted(_find_matches(task[:_MAX_TASK_CHARS]), key=lambda item: item[0])
    examples = dict.fromkeys(
        example
        for _, example in matches
        if len(example.call) + len(example.result) <= _MAX_EXAMPLE_CHARS
    )
    return tuple(examples)[:_MAX_EXAMPLES]


def missing_examples(task: str, tests: str) -> tuple[TaskExample, ...]:
    """Return the examples of a task that are not in the tests."""
    return tuple(example for example in find_examples(task) if not example.is_in(tests))


def examples_text(examples: Sequence[TaskExample]) -> str:
    """Return examples as a list, or ''."""
    return "\n".join(f"- {example}" for example in examples)


def _find_matches(task: str) -> Iterator[tuple[int, TaskExample]]:
    for pattern in (_PROSE, _ARROW):
        for match in pattern.finditer(task):
            if not _is_quoted(task, match.start()):
                yield match.start(), TaskExample(match["call"], match["code"] or match["plain"])
    for match in _ASSERTION.finditer(task):
        yield match.start(), TaskExample(match["line"])
    for match in _SESSION.finditer(task):
        output = match["output"].strip()
        if (
            output
            and "(" in match["call"]
            and not match["more"]
            and not match["call"].startswith(("assert ", "import ", "from "))
        ):
            yield match.start(), TaskExample(match["call"].strip(), output.splitlines()[-1].strip())


def _is_quoted(task: str, position: int) -> bool:
    """Return whether a position is inside double quotes, as in an error message."""
    return task[task.rfind("\n\n", 0, position) + 1 : position].count('"') % 2 == 1


# Context of the cases that fail on the base: their output, the lines of the repository that it
# names, and the tests.


_FAILED_OUTCOMES = {"failed", "errored"}
# `File "src/a.py", line 12`, `src/a.py:12: ValueError`, `(lib/a.js:3:5)`, `foo_test.go:12:`,
# `src/lib.rs:10:5`
_FRAME = re.compile(
    r'([\w@.+/-]*[\w@+-]\.(?:pyi?|[cm]?[jt]sx?|go|rs|cc|[ch](?:pp|xx)?))(?:", line |:)(\d{1,6})\b'
)
_FAILURE_CONTEXT_NAME = re.compile(r"[^\W\d]\w*")
_MAX_FRAMES = 40
_READ_CHARS = 20_000
_MESSAGE_LINES, _LINE_CHARS = 4, 300  # lines that identify a failure, and compared characters


@dataclass(frozen=True, slots=True)
class FailingCase:
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
        return tuple(reversed(_FAILURE_CONTEXT_NAME.findall(self.case.partition("[")[0])))

    @property
    def failure_key(self) -> object:
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


def find_failing_cases(
    runs: Mapping[str, CheckRun],
    files: Sequence[str],
    folders: Mapping[str, str],
    skipped: Sequence[str] = (),
) -> list[FailingCase]:
    """Return the failing cases: first one for each way to fail, then those that fail in the same
    way as another, then those without output.

    skipped: ids to leave out.
    """
    cases: list[FailingCase] = []
    for check, run in runs.items():
        failing = [
            case
            for case, outcome in run.cases.items()
            if outcome in _FAILED_OUTCOMES and case not in skipped
        ]
        folder = folders.get(check, "")
        file_index = FileIndex(files, folder)
        if not run.cases and run.verdict is Verdict.FAILED:
            failing = [check]
        is_single = len(failing) == 1
        for case in failing:
            detail = run.details.get(case, "") or (run.output if is_single or not run.cases else "")
            cases.append(FailingCase(check, case, detail, file_index.frames(detail)))
    firsts = {item.failure_key: item for item in reversed(cases) if item.detail}
    return sorted(
        cases, key=lambda item: (not item.detail, firsts.get(item.failure_key) is not item)
    )


class FileIndex:
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
        candidates = [
            (_count_shared(path.split("/"), parts), path)
            for path in self._by_name.get(parts[-1], ())
        ]
        best = max((count for count, _ in candidates), default=0)
        longest = [path for count, path in candidates if count == best]
        in_folder = (
            [path for path in longest if path.startswith(f"{self._folder}/")]
            if self._folder
            else []
        )
        matches = longest if len(longest) == 1 else in_folder
        return (
            matches[0]
            if len(matches) == 1 and (best > 1 or len(parts) == 1 or "/" not in matches[0])
            else ""
        )

    def frames(self, text: str) -> tuple[tuple[str, int], ...]:
        """Return the lines of the repository, (path, line), that a text names, innermost first.
        Python prints them last, others first.
        """
        frames = [
            (path, int(line))
            for path_text, line in _FRAME.findall(text[-_READ_CHARS:])
            if (path := self.path(path_text))
        ]
        if any(path.endswith(".py") for path, _ in frames):
            frames.reverse()
        return tuple(dict.fromkeys(frames))[:_MAX_FRAMES]


def _count_shared(first: Sequence[str], second: Sequence[str]) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return count


# A survey of the base: a sandbox parses the code. Its answer is hostile, and bounded and typed
# here.


_MAP_FILES = 1000
"""Source files that are parsed for the repository map."""
_MAP_BYTES = 4_000_000
"""The size of these files together."""
_MAP_SECONDS = 15.0
"""A council continues without a map after this time."""

_MAX_SPANS, _TEXT_CHARS, _NAME_CHARS, _MAX_DEFINING_FILES = 60, 8000, 300, 10
_MAX_CACHED_MAPS = 32
_MAX_PATHS_CHARS = 400_000
_log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepoMapRequest:
    """What a survey should prefer.

    frames: lines (path, number). tests: (path, name). Their code is returned. paths, words: further
    files and words. names: their defining files are returned. map_chars: the length of the map.
    """

    frames: tuple[tuple[str, int], ...] = ()
    tests: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    map_chars: int = 0


@dataclass(frozen=True, slots=True)
class CodePassage:
    """A piece of a file from a line on, usually a function with its qualified name."""

    path: str
    name: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class RepoMap:
    """The code around the requested lines, files that define the names, a map of files and
    signatures, and a function as an example.
    """

    spans: tuple[CodePassage, ...] = ()
    defining_files: tuple[str, ...] = ()
    map: str = ""
    example: CodePassage | None = None


class RepoMapper:
    """Surveys bases, and caches the last results. A base without code in a known language is not
    surveyed.
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._cached_maps: LRUCache[str, RepoMap] = LRUCache(_MAX_CACHED_MAPS)

    async def survey(self, prepared: Prepared, request: RepoMapRequest) -> RepoMap:
        """Return the survey. If it fails, return an empty one and log a warning, since a council
        can work without it.
        """
        if not any(language_of(path) for path in prepared.files):
            return RepoMap()
        key = digest(prepared.base.repository, prepared.key, prepared.base.sha, repr(request))
        if key in self._cached_maps:
            return self._cached_maps[key]
        try:
            repo_map = await self._run_survey(prepared, request, key)
        except MoothallError as error:
            _log.warning(
                "no survey of the repository",
                repository=prepared.base.repository,
                reason=error.message,
            )
            return RepoMap()
        self._cached_maps[key] = repo_map
        return repo_map

    async def _run_survey(self, prepared: Prepared, request: RepoMapRequest, key: str) -> RepoMap:
        arguments = asdict(request) | {
            "files": _MAP_FILES,
            "bytes": _MAP_BYTES,
            "known": _code_files(prepared),
        }
        deadline = datetime.now(UTC) + timedelta(seconds=_MAP_SECONDS)
        async with self._workspaces.open(prepared, f"survey-{key[:12]}") as workspace:
            result = await workspace.call(
                ToolCall(f"survey-{key[:12]}", "files.survey", arguments, deadline)
            )
        if result.status is not ToolStatus.SUCCESS:
            _log.warning(
                "no survey of the repository",
                repository=prepared.base.repository,
                reason=f"{result.status}: {result.error[:300]}",
            )
            return RepoMap()
        return read_survey(result.output, set(prepared.files), request.map_chars)


def _code_files(prepared: Prepared) -> list[str]:
    """Return the base's code files, so that files from its set-up are left out; () if they are too
    many to send.
    """
    paths = [path for path in prepared.files if language_of(path)]
    return paths if sum(map(len, paths)) <= _MAX_PATHS_CHARS else []


def read_survey(output: Mapping[str, Any], known_paths: set[str], map_chars: int) -> RepoMap:
    """Return the answer of a sandbox as a survey, without malformed parts."""
    spans, defining_files, example = output.get("spans"), output.get("homes"), output.get("example")
    map_text = output.get("map")
    return RepoMap(
        spans=tuple(
            span
            for item in list_of(spans)[:_MAX_SPANS]
            if (span := _read_span(item, known_paths)) is not None
        ),
        defining_files=tuple(
            path
            for path in list_of(defining_files)[:_MAX_DEFINING_FILES]
            if isinstance(path, str) and path in known_paths
        ),
        map=map_text[:map_chars] if isinstance(map_text, str) else "",
        example=_read_span(example, known_paths),
    )


def _read_span(item: Any, known_paths: set[str]) -> CodePassage | None:
    if not isinstance(item, dict):
        return None
    path, name, line, text = (item.get(field) for field in ("path", "name", "line", "text"))
    if not (
        isinstance(path, str)
        and path in known_paths
        and isinstance(name, str)
        and isinstance(line, int)
        and isinstance(text, str)
    ):
        return None
    return CodePassage(path, name[:_NAME_CHARS], line, text[:_TEXT_CHARS])
