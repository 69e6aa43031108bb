"""What code holds of its tests: helpers that assert, fixtures, bases of test cases. One that a patch alters may judge otherwise. Pure.

They lie beside the code where tests of several folders, or of others, need them. As with all that reaches for what judges, a person
should look: it may be honest.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.diffs import file_diffs
from moothall.ranking.syntax.folding import last_name
from moothall.ranking.syntax.rust_tests import with_tests_of

_SHOWN, _LINE, _LONGEST = 10, 160, 20_000
_ENDS = re.compile(r"\r\n|\r|\n")  # as Python counts lines
_OF_TESTS = re.compile(r"Test|(?:^|Test)Case|Assert(?!ed)|Check(?:s|er)?$|Expect")
_SCRIPTS = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx")
_HEADS = {
    ".go": re.compile(r"(?m)^func (?:\([^)\n]*\) )?(?P<name>\w+)\([^\n]*\{$"),
    ".rs": re.compile(r"(?m)^[ \t]*(?:pub(?:\([^)\n]*\))? +)?(?:fn +(?P<name>\w+)[^;{]*|macro_rules! +(?P<macro>\w+) *)\{"),
    "": re.compile(
        r"(?m)^[ \t]*(?:export +(?:default +)?)?(?:(?:async +)?function +(?P<name>[\w$]+) *\("
        r"|(?:(?:const|let|var) +|(?:module\.)?exports\.)(?P<put>[\w$]+) *= *(?:async +)?(?:function\b|\([^\n]*=>|\w+ *=>))[^{\n]*\{"
    ),
}
_ASSERTS = {
    ".go": re.compile(r"\btesting\.(?:T|TB|B|F)\b"),
    ".rs": re.compile(r"\bassert_(?:eq|ne)!|macro_rules![^{]*\{(?s:.*)\bassert\w*!"),
    "": re.compile(r"(?<![.\w])assert\b|(?<![.\w])expect\s*\(|AssertionError"),
}
_ANSWERS = {".go": re.compile(r"(?!)"), ".rs": re.compile(r"^[^{]*->"), "": re.compile(r"\breturn\s+[^;\s]")}
"""By ending, what a function has that gives an answer: that one is code, which may well assert something."""


def altered_helpers(diff: str, base: Mapping[str, str], own_tests: Iterable[str]) -> tuple[str, ...]:
    """Return the helpers of tests that a diff alters outside of its author's tests, as `path:number: text`. `base`: the texts before."""
    tests = frozenset(own_tests)
    found: list[str] = []
    for part in file_diffs(diff):
        text = base.get(part.path, "")
        if not text or part.path in tests:
            continue
        ending = part.path[part.path.rfind(".") :]
        read = _of_python if ending in {".py", ".pyi"} else _Others(ending).all if ending in {".go", ".rs", *_SCRIPTS} else None
        if read is None:
            continue
        before, now = read(text), part.apply(text)
        now = with_tests_of(now, text) if ending == ".rs" else now
        after, lines = read(now), _ENDS.split(now)
        for name, (said, _) in before.items():
            if after.get(name, ("", 0))[0] != said:
                number = after[name][1] if name in after else _find_line(lines, name)
                found.append(
                    f"{part.path}:{number}: {lines[number - 1].strip()[:_LINE]}" if number else f"{part.path}:1: {name} is gone"
                )
    return tuple(found[:_SHOWN])


def _find_line(lines: Sequence[str], name: str) -> int:
    """Return the first line that speaks of a name, 0 where none does."""
    word = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b")
    return next((number for number, line in enumerate(lines, 1) if word.search(line)), 0)


def _of_python(text: str) -> dict[str, tuple[str, int]]:
    """By name what it says, and its line."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
        found = dict(_find_helpers(tree, ""))
        for node in ast.walk(tree):  # a name that is given to something else counts as altered
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in found:
                found[node.id] = (f"{found[node.id][0]}=", node.lineno)
        return found
    return {}


def _find_helpers(node: ast.AST, within: str) -> Iterator[tuple[str, tuple[str, int]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and any(last_name(each).endswith("TestCase") for each in child.bases):
            yield child.name, (ast.dump(child), child.lineno)
        elif isinstance(child, ast.ClassDef):
            yield from _find_helpers(child, child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and _is_helper(child, within):
            yield f"{within}.{child.name}" if within else child.name, (ast.dump(child), child.lineno)


def _is_helper(node: ast.FunctionDef | ast.AsyncFunctionDef, within: str) -> bool:
    """Whether it asserts and gives no answer, or is a fixture or hook of pytest's. What a method asserts of its own object is code."""
    if node.name.startswith("pytest_") or any("fixture" in last_name(mark) for mark in node.decorator_list):
        return True
    own = list(ast.walk(node))
    if any(isinstance(each, ast.Yield | ast.YieldFrom) or (isinstance(each, ast.Return) and each.value) for each in own):
        return False
    return (not within or _OF_TESTS.search(within) is not None) and any(map(_asserts, own))


def _asserts(node: ast.AST) -> bool:
    match node:
        case ast.Assert(test=ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn(), *_])):
            return True
        case ast.Raise(exc=exc) if exc is not None:
            return last_name(exc) == "AssertionError"
        case ast.Call(func=func):
            return last_name(func).startswith("assert")
    return False


class _Others:
    """Go, Rust and JavaScript, by their words."""

    def __init__(self, ending: str) -> None:
        self._ending = ending if ending in _HEADS else ""

    def all(self, text: str) -> dict[str, tuple[str, int]]:
        """By name what it says, and its line."""
        found = {}
        ends = closings(text, "rust" if self._ending == ".rs" else "script")
        for match in _HEADS[self._ending].finditer(text):
            end = ends.get(match.end() - 1, 0)
            said = text[match.start() : end] if end - match.start() <= _LONGEST else ""
            if said and _ASSERTS[self._ending].search(said) and not _ANSWERS[self._ending].search(said):
                name = next(each for each in match.groups() if each)
                found[name] = (" ".join(said.split()), text.count("\n", 0, match.start()) + 1)
        return found
