"""New modules of Python that take the name of another which the tests import already: an interpreter would find them in its place. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from moothall.ranking.patched import file_diffs

_ROOTS = ("", "src/", "lib/")
_IMPORTS = re.compile(r"(?m)^(?:from|import)[ \t]+([\w., \t]*)")
_FIRST = re.compile(r"(?:^|,)[ \t]*(\w+)")
_HOLDS_CASES = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|tests)\.py$")


def new_modules(diff: str, files: Collection[str], folders: Iterable[str]) -> dict[str, str]:
    """Return by name the first file of each module or package that a diff brings to where modules are looked for.

    `files` are those of the base, `folders` those that its checks are run in.
    """
    roots = {*_ROOTS, *(f"{folder}/{root}" for folder in folders if folder for root in _ROOTS)}
    known = {root: {_top(path[len(root) :]) for path in files if path.startswith(root)} for root in roots}
    found: dict[str, str] = {}
    for part in file_diffs(diff):
        if part.new and part.path.endswith(".py"):
            root = max((root for root in roots if part.path.startswith(root)), key=len)
            name = part.path.removeprefix(root).partition("/")[0].removesuffix(".py")
            if name not in known[root]:
                found.setdefault(name, part.path)
    return found


def find_shadows(modules: Mapping[str, str], tests: Mapping[str, str], cases: Collection[str]) -> tuple[str, ...]:
    """Return those whose name a test file imports that was run on the base, without them, as `path:1: …`.

    `tests`: the base's test files and what these import; `cases`: what was told of there.
    """
    taken: set[str] = set()
    for test, text in tests.items():
        named = modules.keys() & {name for match in _IMPORTS.finditer(text) for name in _FIRST.findall(match[1])}
        if not named <= taken and _has_run(test, cases):
            taken |= named
    return tuple(
        f"{path}:1: it takes the name of a module that tests import, {name}" for name, path in modules.items() if name in taken
    )


def _top(path: str) -> str:
    """Return the module or package that a path below a root is of, '' for a file that is none."""
    first, below, _ = path.partition("/")
    return first if below else first.removesuffix(".py") if first.endswith(".py") else ""


def _has_run(test: str, cases: Collection[str]) -> bool:
    """Whether a case of a test file was told of, or of any file where it is one that others import."""
    if not _HOLDS_CASES.search(test):
        return bool(cases)
    module = test.removesuffix(".py").split("/")
    dotted = tuple(".".join(module[at:]) + "." for at in range(len(module)))  # unittest may leave the first folders out
    return any(
        test == case.partition("::")[0] or test.endswith(f"/{case.partition('::')[0]}")
        if "::" in case
        else case.startswith(dotted)
        for case in cases
    )
