"""What a council is shown of a repository: first the tests that fail on the base, then what they are about.

Measured on a small model: with the failing test in the prompt nine seats in ten were right at the
first turn, with the file alone three in ten.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from moothall.council.text import CHARS_PER_TOKEN, clip, tokens
from moothall.domain.evidence import CheckRun
from moothall.domain.repository import Prepared
from moothall.errors import NotFound

Read = Callable[[str], Awaitable[str]]

_RED = {"failed", "errored"}
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(\.*[\w.]+)(?:\s+import\s+\(?([\w, ]+))?", re.MULTILINE)
_REQUIRE = re.compile(r"""(?:from|require\(|import)\s*["'](\.{1,2}/[\w./-]+)["']""")
_WORD = re.compile(r"[\w./-]*[\w-]")
_TEST_AFFIX = re.compile(r"^test[_-]|[_.-](?:test|tests|spec)$")
_LISTED = 200


@dataclass(frozen=True, slots=True)
class Shown:
    """Paths with their (possibly cut) text, in the order in which they are shown, and the list of all files."""

    failing: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    listing: str


async def show(prepared: Prepared, description: str, read: Read, budget: int) -> Shown:
    """Return the excerpt of the base that fits into `budget` tokens. `read` gives a file of the base."""
    known = set(prepared.files)
    listing = clip("\n".join(prepared.files[:_LISTED]), int(budget * CHARS_PER_TOKEN / 5))
    if len(prepared.files) > _LISTED:
        listing += f"\n… and {len(prepared.files) - _LISTED} more"
    left = budget - tokens(listing)
    share = max(left * 2 // 5, 64)  # no file takes it all
    failing: list[tuple[str, str]] = []
    for path in failing_files(prepared.runs.values(), prepared.files):
        text = clip(await read(path), int(min(share, left) * CHARS_PER_TOKEN))
        if left < share // 4:
            break
        failing.append((path, text))
        left -= tokens(text)
    named = [*_named(description, prepared.files), *_subjects(failing, prepared.files, known)]
    shown = {path for path, _ in failing}
    files: list[tuple[str, str]] = []
    for path in dict.fromkeys(named):
        if path in shown or left < share // 4:
            continue
        try:
            text = clip(await read(path), int(min(share, left) * CHARS_PER_TOKEN))
        except NotFound:
            continue  # a submodule or a file that is no text
        files.append((path, text or "(empty file)"))
        left -= tokens(text)
    return Shown(tuple(failing), tuple(files), listing)


def failing_files(runs: Iterable[CheckRun], files: Sequence[str]) -> list[str]:
    """Return the files of the red cases, in the order of the repository's files.

    A case is `<file>::<name>` or the file itself; where a runner gave no cases, files that its output names.
    """
    found: set[str] = set()
    for run in runs:
        red = [case for case, outcome in run.cases.items() if outcome in _RED]
        found.update(filter(None, (_file_of(case.partition("::")[0], files) for case in red)))
        if not run.cases and run.verdict == "failed":
            words = set(_WORD.findall(run.output))
            found.update(path for path in files if path in words and _TEST_AFFIX.search(_stem(path)))
    return [path for path in files if path in found]


def _file_of(name: str, files: Sequence[str]) -> str:
    """A runner says `tests/test_a.py` or `tests.test_a` or `tests.test_a.TestClass`."""
    if name in files:
        return name
    dotted = name.split(".")
    for length in range(len(dotted), 0, -1):
        path = "/".join(dotted[:length]) + ".py"
        if path in files:
            return path
    return ""


def _named(description: str, files: Sequence[str]) -> Iterator[str]:
    """Files that the task names, by path or by their last part."""
    words = {word.strip("./") for word in _WORD.findall(description)}
    for path in files:
        if path in words or ("." in posixpath.basename(path) and posixpath.basename(path) in words):
            yield path


def _subjects(failing: Sequence[tuple[str, str]], files: Sequence[str], known: set[str]) -> Iterator[str]:
    """Files that the failing tests import, then those whose name says that they are tested there."""
    for path, text in failing:
        folder = posixpath.dirname(path)
        for module in _modules(text):
            yield from _module_files(module, folder, files)
        for target in _REQUIRE.findall(text):
            stem = posixpath.normpath(posixpath.join(folder, target))
            yield from (f"{stem}{end}" for end in ("", ".js", ".ts", ".mjs", "/index.js", "/index.ts") if f"{stem}{end}" in known)
    for path, _ in failing:
        subject = _TEST_AFFIX.sub("", _stem(path))
        yield from (other for other in files if other != path and _stem(other) == subject)


def _modules(text: str) -> Iterator[str]:
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


def _stem(path: str) -> str:
    return posixpath.basename(path).rsplit(".", 1)[0]
