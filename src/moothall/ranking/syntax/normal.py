"""Normal form of a change: without comments, formatting and docstrings. Pure; the input is
untrusted text from a model.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Mapping

from moothall.domain.ids import digest
from moothall.ranking.syntax.diffs import FileDiff, file_diffs

NormalChange = Mapping[str, tuple[str, str]]
"""By file its normalized code before and after the change."""
_START = re.compile(r"(?m)^diff --git ")
_PYTHON_SUFFIXES = (".py", ".pyi")
_TOKENIZED_SUFFIXES = (".go", ".rs", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\w+|[^\w\s]",
    re.DOTALL,
)
_TASK_ABOUT_WORDING = re.compile(
    r"\b(?:comment|docs?\b|docstring|document|readme|format|reformat|lint|style|spelling|typo|licen[cs]e|rename)",
    re.IGNORECASE,
)
_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def existing_code_files(diff: str) -> tuple[str, ...]:
    """Return the existing code files that a diff changes, whose texts `normalize_change` needs."""
    return tuple(
        part.path
        for part in file_diffs(diff)
        if part.path.endswith((*_PYTHON_SUFFIXES, *_TOKENIZED_SUFFIXES)) and not part.new
    )


def normalize_change(
    diff: str, texts: Mapping[str, str], own_tests: Collection[str]
) -> NormalChange:
    """Return by file its normalized code before and after the change, without the author's own
    tests.

    Files that are not code, or cannot be parsed, are not normalized.

    texts: the files on the base.
    """
    return {
        part.path: _before_and_after(part, texts)
        for part in file_diffs(diff)
        if part.path not in own_tests
    }


def change_digest(change: NormalChange) -> str:
    """Return a digest that is equal for diffs with the same effect on the code."""
    return digest(*(f"{path}\0{after}" for path, (_, after) in sorted(change.items())))


def changes_only_wording(diff: str, change: NormalChange, task: str) -> bool:
    """True if a diff changes only wording or formatting, and the task asks for more.

    change: the normal form of the diff.
    """
    if len(_START.findall(diff)) != len(list(file_diffs(diff))) or _TASK_ABOUT_WORDING.search(task):
        return False
    return bool(change) and all(before == after for before, after in change.values())


def _before_and_after(part: FileDiff, texts: Mapping[str, str]) -> tuple[str, str]:
    before = texts.get(part.path, "")
    if part.new:
        return "", f"new {normalize_code(part.path, part.apply(before))}"
    if part.path not in texts:
        return "", part.body
    return normalize_code(part.path, before), normalize_code(part.path, part.apply(before))


def normalize_code(path: str, text: str) -> str:
    """Return a normalized text; the text itself if its language is unknown or it cannot be
    parsed.
    """
    if path.endswith(_PYTHON_SUFFIXES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.dump(_without_docstrings(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    if path.endswith(_TOKENIZED_SUFFIXES):
        return "\0".join(match[0] for match in _TOKENS.finditer(text) if match["comment"] is None)
    return text


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and node.body and _is_docstring(node.body[0]):
            node.body = node.body[1:]
    return tree


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
