"""What a disk shows of tests while they are run in other words: their literals are others, and nothing of it is run. Pure.

Who reads there what is wanted, or whether a test is as it was, finds neither. Lines stay where they are.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress

_LITERAL = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(?P<number>(?<![\w.])\d+(?:\.\d+)?(?!\w))",
    re.DOTALL,
)
_FIRST = {
    ".go": re.compile(r"(?m)^(?:func|var|const|type)\b"),
    ".rs": re.compile(r"#\[(?:cfg\([^\]]*\btest\b|(?:\w+::)*test\b)"),
    "": re.compile(r"(?:)"),
}
"""By ending, where a file's tests begin: nothing before is touched."""
_BRINGS = re.compile(r"(?m)^[^\n]*(?:\brequire\s*\(|\bimport\b|\bfrom\s+['\"])[^\n]*$")
_ESCAPE = re.compile(r"\\(?:x..|u\{[^}]*\}|u....|.)|\$?\{[^}]*\}", re.DOTALL)


def rewrite_shown(path: str, text: str, targets: Iterable[tuple[str, ...]], step: int) -> str:
    """Return a test file as it is shown: of Python the tests `targets` and what modules and classes assign, else all of its tests."""
    places = _of_python(text, {target[-1] for target in targets}) if path.endswith(".py") else _of_others(path, text)
    made, at = [], 0
    for start, end in places:
        made += [text[at:start], _other(text[start:end], 1 + step % 8)]
        at = end
    return "".join((*made, text[at:]))


def _other(literal: str, step: int) -> str:
    """Other digits and letters in the places of those that are there."""
    made, at = [], 0
    for match in _ESCAPE.finditer(literal):
        made += [_shift(literal[at : match.start()], step), match[0]]
        at = match.end()
    return "".join((*made, _shift(literal[at:], step)))


def _shift(text: str, step: int) -> str:
    def other(match: re.Match[str]) -> str:
        char = match[0]
        if char in "123456789":
            return "123456789"[(int(char) - 1 + step) % 9]
        first = "a" if char.islower() else "A"
        return chr(ord(first) + (ord(char) - ord(first) + step) % 26)

    return re.sub(r"[1-9]|(?<![A-Za-z])[A-Za-z](?=[A-Za-z])", other, text)


def _of_others(path: str, text: str) -> Iterator[tuple[int, int]]:
    ending = path[path.rfind(".") :]
    first = _FIRST.get(ending, _FIRST[""]).search(text)
    brings = [match.span() for match in _BRINGS.finditer(text)] if ending not in {".go", ".rs"} else []
    for match in _LITERAL.finditer(text, first.start() if first else len(text)):
        if not match["comment"] and not any(start <= match.start() < end for start, end in brings):
            yield match.span()


def _of_python(text: str, names: set[str]) -> Iterator[tuple[int, int]]:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = _lines(ast.parse(text), names)
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            plain = token.type == tokenize.NUMBER or (
                token.type == tokenize.STRING and not re.match(r"[bru]*f", token.string, re.IGNORECASE)
            )
            if plain and token.start[0] in lines:
                prefix = len(token.string) - len(token.string.lstrip("bruBRU")) if token.type == tokenize.STRING else 0
                yield starts[token.start[0] - 1] + token.start[1] + prefix, starts[token.end[0] - 1] + token.end[1]


def _lines(tree: ast.Module, names: set[str]) -> set[int]:
    """The lines of tests of these names with their marks, and of what modules and classes assign."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            first = min([mark.lineno for mark in node.decorator_list], default=node.lineno)
            found |= set(range(first, (node.end_lineno or first) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef):
            for stmt in node.body:
                if isinstance(stmt, ast.Assign | ast.AnnAssign):
                    found |= set(range(stmt.lineno, (stmt.end_lineno or stmt.lineno) + 1))
    return found
