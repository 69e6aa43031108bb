"""A change without what nothing depends on: comments, formatting, docstrings. Pure; reads text that
a model wrote.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Mapping

from moothall.domain.ids import digest
from moothall.ranking.syntax.diffs import FileDiff, file_diffs

NormalChange = Mapping[str, tuple[str, str]]
"""By file what its code is before and after, without what nothing depends on."""
_START = re.compile(r"(?m)^diff --git ")
_PYTHON = (".py", ".pyi")
_OTHERS = (".go", ".rs", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\w+|[^\w\s]",
    re.DOTALL,
)
_WORDS = re.compile(
    r"\b(?:comment|docs?\b|docstring|document|readme|format|reformat|lint|style|spelling|typo|licen[cs]e|rename)",
    re.IGNORECASE,
)
_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def changed_code(diff: str) -> tuple[str, ...]:
    """Return the files that were there before and whose text `normal_change` needs."""
    return tuple(
        part.path
        for part in file_diffs(diff)
        if part.path.endswith((*_PYTHON, *_OTHERS)) and not part.new
    )


def normal_change(diff: str, texts: Mapping[str, str], own_tests: Collection[str]) -> NormalChange:
    """Return by file what its code is before and after, the author's own tests aside. `texts`: the
    files on the base.

    What is no code, or cannot be read, is as it is written.
    """
    return {
        part.path: _before_and_after(part, texts)
        for part in file_diffs(diff)
        if part.path not in own_tests
    }


def same_change(change: NormalChange) -> str:
    """Return what is equal for diffs that make the same of the code."""
    return digest(*(f"{path}\0{after}" for path, (_, after) in sorted(change.items())))


def changes_nothing(diff: str, change: NormalChange, task: str) -> bool:
    """Whether a diff leaves the code as it was but for words, where the task asks for more than
    these. `change`: its normal form.
    """
    if len(_START.findall(diff)) != len(list(file_diffs(diff))) or _WORDS.search(task):
        return False
    return bool(change) and all(before == after for before, after in change.values())


def _before_and_after(part: FileDiff, texts: Mapping[str, str]) -> tuple[str, str]:
    before = texts.get(part.path, "")
    if part.new:
        return "", f"new {code_of(part.path, part.apply(before))}"
    if part.path not in texts:
        return "", part.body
    return code_of(part.path, before), code_of(part.path, part.apply(before))


def code_of(path: str, text: str) -> str:
    """Return a text without what nothing depends on, as far as its language is known."""
    if path.endswith(_PYTHON):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.dump(_without_docstrings(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    if path.endswith(_OTHERS):
        return "\0".join(match[0] for match in _TOKENS.finditer(text) if match["comment"] is None)
    return text


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and node.body and _is_words(node.body[0]):
            node.body = node.body[1:]
    return tree


def _is_words(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
