"""Names of Python that a patch puts in the way of those which tests use: modules that an interpreter would find in the place of another,
and built-in names in a module of which tests take all that it has. Pure.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping

from moothall.ranking.syntax.diffs import file_diffs

_ROOTS = ("", "src/", "lib/")
_SHOWN, _LINE = 10, 160
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = re.compile(r"(?m)^(?:from|import)[ \t]+([\w., \t]*)")
_FIRST = re.compile(r"(?:^|,)[ \t]*(\w+)")
_STARRED = re.compile(r"(?m)^[ \t]*from[ \t]+(\.*\w*)[\w.]*[ \t]+import[ \t]*\(?[ \t]*\*")
_HOOKS = re.compile(
    r"(?:setup|teardown)(?:_(?:module|function|class|method))?|(?:setUp|tearDown)Module|load_tests|pytest\w*|pytestmark"
)
"""What runners look for in a module of tests."""
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


def find_stars(diff: str, before: Mapping[str, str], tests: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of a diff that give a built-in name, or one that runners look for, to a module of a package of which a test takes
    all names, as `path:number: …`. `before`, `tests`: texts of the base.
    """
    packages = {name.lstrip(".") for text in tests.values() for name in _STARRED.findall(text)}
    found = []
    for part in file_diffs(diff) if packages else ():
        names = {word.removesuffix(".py") for word in part.path.split("/")}
        if part.path.endswith(".py") and part.path not in tests and ("" in packages or packages & names):
            added = part.added
            bound = _bound(part.apply(before.get(part.path, "")))
            found += [f"{part.path}:{at}: {added[at].strip()[:_LINE]}" for at, name in bound if at in added and _is_taken(name)]
    return tuple(found[:_SHOWN])


def _is_taken(name: str) -> bool:
    return hasattr(builtins, name) or _HOOKS.fullmatch(name) is not None


def _bound(text: str) -> Iterator[tuple[int, str]]:
    """Yield the names that a module has, with the line of each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) if node is statement:
                    yield node.lineno, name
                case ast.Name(id=name, ctx=ast.Store()) if not isinstance(statement, _SCOPES):
                    yield node.lineno, name
                case ast.alias(name=name, asname=other) if not isinstance(statement, _SCOPES):
                    yield node.lineno, other or name.partition(".")[0]
                case ast.Call(func=ast.Attribute(attr="update" | "setdefault"), args=[ast.Constant(value=str(name)), *_]):
                    yield node.lineno, name


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
