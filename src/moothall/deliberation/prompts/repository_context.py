"""The excerpt of a repository in a council's first prompt: what fails on the base with its output,
then the code that the failures name, then the rest.

Measured with a small model: nine seats in ten were right at the first turn with the failing test in
the prompt, and three in ten with the file alone.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from moothall.deliberation.prompts.excerpts import (
    CodePassage,
    FailingCase,
    FileIndex,
    RepoMap,
    RepoMapRequest,
    find_failing_cases,
)
from moothall.domain.repository import Prepared
from moothall.domain.text import CHARS_PER_TOKEN, clip, tokens
from moothall.errors import NotFound

Read = Callable[[str], Awaitable[str]]
SurveyCode = Callable[[RepoMapRequest], Awaitable[RepoMap]]

_IMPORT = re.compile(
    r"^\s*(?:from|import)\s+(\.*[\w.]+)(?:\s+import\s+\(?([\w, ]+))?", re.MULTILINE
)
_REQUIRE = re.compile(r"""(?:from|require\(|import)\s*["'](\.{1,2}/[\w./-]+)["']""")
_USE = re.compile(r"^\s*use\s+\w+::(\w+)", re.MULTILINE)
_WORD = re.compile(r"[\w./-]*[\w-]")
_NAME = re.compile(r"[^\W\d]\w{2,60}")
_TEST_AFFIX = re.compile(r"^test[_-]|[_.-](?:test|tests|spec)$")
_MAX_LISTED_FILES = 200
_MAX_CASES = 20  # failing cases that are named and whose stack frames are followed
_MAX_IDENTIFIERS = 300  # identifiers that the map prefers
# The largest share of the budget for each part. The rest is left to the next parts.
_CASES_SHARE, _CODE_SHARE, _MAP_SHARE = 0.25, 0.25, 0.25
_MIN_MAP_SHARE = 0.1  # the share of the budget that files leave to the map
GUIDE = "AGENTS.md"
_GUIDE_SHARE, _GUIDE_TOKENS = 0.1, 2000  # share of the budget; longer guides are cut
_MAP_TOKENS = 4000  # a longer map helps less
_MIN_TOKENS = 40
_CLIP_MARK = re.compile(r"^\[… \d+ characters left out …\]$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """The parts of the base that fit, in the order in which they are shown. Texts may be cut.

    failing, files: texts by path. cases: outputs by failing case; may be empty. code: functions by
    path and line. map: files and signatures. listing: the names of all files. example: a short
    function of the repository. guide: the repository's own instructions for agents.
    """

    failing: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    listing: str
    cases: tuple[tuple[str, str], ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    map: str = ""
    example: CodePassage | None = None
    guide: str = ""


class _TokenBudget:
    """The tokens that are left."""

    def __init__(self, count: int) -> None:
        self.tokens = count

    def clip(self, text: str, max_tokens: float) -> str:
        """Return the text, cut to `max_tokens` and to the budget, and subtract its tokens."""
        clipped = clip(text, int(max(min(max_tokens, self.tokens), 0) * CHARS_PER_TOKEN))
        self.tokens -= tokens(clipped)
        return clipped


async def select_context(
    prepared: Prepared,
    description: str,
    read: Read,
    budget: int,
    survey_code: SurveyCode | None = None,
) -> RepositoryContext:
    """Return the excerpt of the base that fits into `budget` tokens.

    read: returns the text of a file of the base. survey_code: surveys the base.
    """
    profile = prepared.base.profile
    deciding = {name: run for name, run in prepared.runs.items() if name not in profile.advisory}
    failing = find_failing_cases(
        deciding, prepared.files, profile.folders, (*prepared.flaky, *profile.known_failures)
    )
    tests = failing_files(failing, prepared)
    texts = {path: await _read_or_empty(read, path) for path in tests[:_MAX_CASES]}
    named = list(dict.fromkeys(named_files(description, prepared.files)))
    hints = {
        path: await _read_or_empty(read, path)
        for path in named[:_MAX_CASES]
        if looks_like_test(path)
    }
    subjects = [*named, *_find_subjects(texts | hints, prepared.files)]
    survey = (
        await survey_code(
            _survey_request(
                failing, texts, subjects, prepared, description=description, budget=budget
            )
        )
        if survey_code is not None
        else RepoMap()
    )
    listing = _list_files(prepared.files, int(budget * CHARS_PER_TOKEN / (10 if survey.map else 5)))
    map_text = _whole_lines(survey.map, int(budget * _MIN_MAP_SHARE))
    guide = (
        _first_lines(await _read_or_empty(read, GUIDE), min(budget * _GUIDE_SHARE, _GUIDE_TOKENS))
        if GUIDE in prepared.files
        else ""
    )
    remaining = _TokenBudget(
        budget - tokens(listing) - tokens(map_text) - (tokens(guide) if guide else 0)
    )
    share = max(remaining.tokens * 2 // 5, 64)  # no file takes it all
    cases = _select_cases(failing, remaining, budget * _CASES_SHARE)
    failing_code = _select_failing_tests(texts, survey.spans, remaining, share)
    code = _select_code(survey.spans, texts, remaining, budget * _CODE_SHARE)
    candidates = sorted(dict.fromkeys([*subjects, *survey.defining_files]), key=looks_like_test)
    shown_paths = {*texts, *(span.path for span in survey.spans if looks_like_test(span.path))}
    files = await _select_files(
        [path for path in candidates if path not in shown_paths], read, remaining, share
    )
    uncut_paths = {path for path, text in (*failing_code, *files) if not _CLIP_MARK.search(text)}
    map_text = _whole_lines(
        _without_files(survey.map, uncut_paths), max(remaining.tokens, 0) + tokens(map_text)
    )
    return RepositoryContext(
        failing_code, files, listing, cases, code, map_text, survey.example, guide
    )


def _list_files(files: Sequence[str], max_chars: int) -> str:
    listing = clip("\n".join(files[:_MAX_LISTED_FILES]), max_chars)
    return (
        f"{listing}\n… and {len(files) - _MAX_LISTED_FILES} more"
        if len(files) > _MAX_LISTED_FILES
        else listing
    )


async def _read_or_empty(read: Read, path: str) -> str:
    try:
        return await read(path)
    except NotFound:
        return ""  # a submodule or a binary file


def _survey_request(
    failing: Sequence[FailingCase],
    texts: dict[str, str],
    subjects: Sequence[str],
    prepared: Prepared,
    *,
    description: str,
    budget: int,
) -> RepoMapRequest:
    """Return what the survey should prefer."""
    frames = dict.fromkeys(frame for item in failing[:_MAX_CASES] for frame in item.frames)
    names = [
        name.strip()
        for text in texts.values()
        for _, group in _IMPORT.findall(text)
        for name in group.split(",")
        if name.strip()
    ]
    prose = " ".join(
        [description, *(f"{item.case} {item.detail[-2000:]}" for item in failing[:_MAX_CASES])]
    )
    tests = [
        (path, item.names[0])
        for item in failing[:_MAX_CASES]
        if item.names
        for path in texts
        if path in _paths_of(item, prepared)
    ]
    return RepoMapRequest(
        frames=tuple(frames)[: 2 * _MAX_CASES],
        tests=tuple(dict.fromkeys(tests)),
        paths=tuple(dict.fromkeys([*texts, *subjects]))[: 2 * _MAX_CASES],
        words=tuple(dict.fromkeys([*names, *_NAME.findall(prose)]))[:_MAX_IDENTIFIERS],
        names=tuple(dict.fromkeys(names))[:_MAX_IDENTIFIERS],
        map_chars=int(min(budget * _MAP_SHARE, _MAP_TOKENS) * CHARS_PER_TOKEN),
    )


def _select_cases(
    failing: Sequence[FailingCase], remaining: _TokenBudget, max_tokens: float
) -> tuple[tuple[str, str], ...]:
    """Return the failing cases that fit with their output. Cases that fail in the same way have it
    once.
    """
    reserved_tokens = remaining.tokens - max_tokens
    case_outputs: list[tuple[str, str]] = []
    failure_keys = set[object]()
    for number, item in enumerate(failing[:_MAX_CASES]):
        available_tokens = remaining.tokens - reserved_tokens
        if available_tokens < _MIN_TOKENS:
            break
        remaining.tokens -= tokens(item.case)
        text = ""
        if (
            item.detail
            and item.failure_key not in failure_keys
            and available_tokens > 2 * _MIN_TOKENS
        ):
            text = remaining.clip(
                item.detail, available_tokens / (2 if number == 0 and len(failing) > 1 else 1)
            )
            failure_keys.add(item.failure_key)
        case_outputs.append((item.case, text))
    if len(failing) > len(case_outputs):
        case_outputs.append((f"… and {len(failing) - len(case_outputs)} more", ""))
    return tuple(case_outputs)


def _select_failing_tests(
    texts: dict[str, str], spans: Sequence[CodePassage], remaining: _TokenBudget, share: int
) -> tuple[tuple[str, str], ...]:
    """Return the files of the failing tests; only the tests of long files."""
    failing = []
    for path, text in texts.items():
        if remaining.tokens < share // 4:
            break
        file_spans = [span.text for span in spans if span.path == path]
        if file_spans and tokens(text) > min(share, remaining.tokens):
            text = "\n\n".join(file_spans)  # noqa: PLW2901 - the part that is shown
        failing.append((path, remaining.clip(text, share)))
    return tuple(failing)


def _select_code(
    spans: Sequence[CodePassage], texts: dict[str, str], remaining: _TokenBudget, max_tokens: float
) -> tuple[tuple[str, str], ...]:
    """Return the functions on the stacks of the failures, without tests."""
    reserved_tokens = remaining.tokens - max_tokens
    code = []
    for span in spans:
        if (
            span.path in texts
            or remaining.tokens - reserved_tokens < _MIN_TOKENS
            or remaining.tokens < _MIN_TOKENS
        ):
            continue
        code.append(
            (
                f"{span.path}, line {span.line}",
                remaining.clip(span.text, remaining.tokens - reserved_tokens),
            )
        )
    return tuple(code)


async def _select_files(
    paths: Sequence[str], read: Read, remaining: _TokenBudget, share: int
) -> tuple[tuple[str, str], ...]:
    files = []
    for path in paths:
        if remaining.tokens < share // 4:
            break
        try:
            text = await read(path)
        except NotFound:
            continue
        files.append((path, remaining.clip(text, share) or "(empty file)"))
    return tuple(files)


def _without_files(text: str, paths: set[str]) -> str:
    """Return a map without the entries of some files."""
    rows, is_kept = [], True
    for row in text.split("\n"):
        is_kept = row.removesuffix(":") not in paths if not row.startswith(" ") else is_kept
        rows += [row] if is_kept else []
    return "\n".join(rows)


def _first_lines(text: str, max_tokens: float) -> str:
    """Return the first lines of a text that fit."""
    clipped = text[: int(max_tokens * CHARS_PER_TOKEN)]
    return clipped.rstrip() if clipped == text else clipped.rpartition("\n")[0].rstrip()


def _whole_lines(text: str, max_tokens: int) -> str:
    """Return the lines of a map that fit, without file names at the end."""
    clipped = text[: max(int(max_tokens * CHARS_PER_TOKEN), 0)]
    rows = clipped.split("\n") if clipped == text else clipped.split("\n")[:-1]
    while rows and not rows[-1].startswith(" "):
        rows.pop()
    return "\n".join(rows)


def failing_files(failing: Sequence[FailingCase], prepared: Prepared) -> list[str]:
    """Return the files of the failing cases, in the order of the repository's files.

    The file is in the case's name (`<file>::<name>`), or else in its stack frames. If the runner
    named no cases, it is in the output.
    """
    paths = {path for item in failing for path in _paths_of(item, prepared)}
    return [path for path in prepared.files if path in paths]


def _paths_of(item: FailingCase, prepared: Prepared) -> list[str]:
    name = item.case.partition("::")[0].partition(" > ")[0]
    if path := named_file(name, prepared.files, prepared.base.profile.folders.get(item.check, "")):
        return [path]
    if framed := [path for path, _ in item.frames if looks_like_test(path)]:
        return list(dict.fromkeys(framed))
    words = set(_WORD.findall(item.detail)) if item.case == item.check else set()
    file_index = FileIndex(prepared.files, prepared.base.profile.folders.get(item.check, ""))
    mentioned = {file_index.path(word) for word in words if "." in word}
    return [path for path in prepared.files if path in mentioned and looks_like_test(path)]


def looks_like_test(path: str) -> bool:
    """Return whether a path looks like a test file."""
    return (
        _TEST_AFFIX.search(stem(path)) is not None or path.startswith("tests/") or "/tests/" in path
    )


def named_file(name: str, files: Collection[str], folder: str) -> str:
    """Return the file that a runner names, relative to a folder, or ''.

    The name is a path, a Python module or a name in a module.
    """
    for path in (posixpath.join(folder, name), name):
        if path in files:
            return path
    dotted = name.split(".")
    for length in range(len(dotted), 0, -1):
        module = "/".join(dotted[:length]) + ".py"
        for path in (posixpath.join(folder, module), module):
            if path in files:
                return path
    return ""


def named_files(description: str, files: Sequence[str]) -> Iterator[str]:
    """Yield the files that the task names by path, file name, Python module or a name in it."""
    words = {word.strip("./") for word in _WORD.findall(description)}
    modules = {
        word.rsplit(".", cut)[0]
        for word in words
        for cut in (0, 1, 2)
        if word.count(".") > cut and "/" not in word
    }
    words |= {path for module in modules for path in _module_files(module, "", files)}
    for path in files:
        if path in words or ("." in posixpath.basename(path) and posixpath.basename(path) in words):
            yield path


def _find_subjects(failing: dict[str, str], files: Sequence[str]) -> Iterator[str]:
    """Yield the files that the failing tests import, then those with the name of a test file."""
    known_paths = set(files)
    for path, text in failing.items():
        folder = posixpath.dirname(path)
        for module in _imported_modules(text):
            yield from _module_files(module, folder, files)
        for target in _REQUIRE.findall(text):
            base = posixpath.normpath(posixpath.join(folder, target))
            yield from (
                f"{base}{suffix}"
                for suffix in ("", ".js", ".ts", ".mjs", "/index.js", "/index.ts")
                if f"{base}{suffix}" in known_paths
            )
        for module in _USE.findall(text) if path.endswith(".rs") else ():
            yield from (
                candidate
                for candidate in files
                if candidate.endswith((f"src/{module}.rs", f"src/{module}/mod.rs"))
            )
    for path in failing:
        subject = _TEST_AFFIX.sub("", stem(path))
        namesakes = [
            candidate for candidate in files if candidate != path and stem(candidate) == subject
        ]
        yield from sorted(
            namesakes, key=lambda candidate: posixpath.dirname(candidate) != posixpath.dirname(path)
        )


def _imported_modules(text: str) -> Iterator[str]:
    for module, names in _IMPORT.findall(text):
        yield module
        yield from (f"{module}.{name.strip()}" for name in names.split(",") if name.strip())


def _module_files(module: str, folder: str, files: Sequence[str]) -> Iterator[str]:
    if module.startswith("."):
        up = len(module) - len(module.lstrip(".")) - 1
        for _ in range(up):
            folder = posixpath.dirname(folder)
        module = f"{folder.replace('/', '.')}.{module.lstrip('.')}".strip(".")
    tail = module.replace(".", "/") + ".py"
    yield from (path for path in files if path == tail or path.endswith(f"/{tail}"))


def stem(path: str) -> str:
    """Return the name of a file without its suffix."""
    return posixpath.basename(path).rsplit(".", 1)[0]
