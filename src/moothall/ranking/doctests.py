"""Documentation examples that run as tests: doctests of Python and text files, and examples in Rust
doc comments. Pure.

Authors change the files that contain them. A file whose examples differ from the base proves
nothing by them.
"""

from __future__ import annotations

import ast
import doctest
import posixpath
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from moothall.ranking.syntax.diffs import file_diffs
from moothall.ranking.test_authorship import lies_in_module, may_be_same_file

_TEXTS = (".rst", ".md", ".txt")
_COMMENT = re.compile(r"^\s*//[/!] ?(.*)$")
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


def find_altered_examples(diff: str, base: Mapping[str, str]) -> tuple[str, ...]:
    """Return the changed files whose examples differ from the base.

    A changed text file always counts as altered.

    base: the texts of existing files before the change.
    """
    altered = []
    for part in file_diffs(diff):
        if part.path.endswith(_TEXTS):
            altered.append(part.path)
        elif part.path in base and part.path.endswith((".py", ".rs")):
            extract_examples = _python_examples if part.path.endswith(".py") else _rust_examples
            before, after = (
                Counter(extract_examples(base[part.path])),
                Counter(extract_examples(part.apply(base[part.path]))),
            )
            if before - after:
                altered.append(part.path)
    return tuple(altered)


def is_example_of(case: str, paths: Iterable[str]) -> bool:
    """True if a case, by the name that its runner gives it, is an example of one of these files."""
    container, separator, rest = case.partition("::")
    if container.endswith(" doc"):
        container = posixpath.normpath(rest.partition(" - ")[0])
    elif not separator and _DOTTED.fullmatch(container):
        return any(lies_in_module(container, path) for path in paths)
    return any(
        may_be_same_file(container, path)
        for path in paths
        if path.endswith((".py", *_TEXTS)) or case.partition("::")[0].endswith(" doc")
    )


def _python_examples(text: str) -> Iterator[tuple[str, str]]:
    """Yield the examples of each docstring, with the name of the documented object.

    All examples of a docstring belong together, since one added line may make another one pass.
    """
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _node_examples(ast.parse(text), "")


def _node_examples(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node) or ""
        if ">>>" in docstring:
            try:
                examples = doctest.DocTestParser().get_examples(docstring)
                yield (
                    name,
                    "\0".join(
                        f"{example.source}\n{example.want}\n{example.exc_msg}"
                        for example in examples
                    ),
                )
            except ValueError:
                yield name, docstring
    for child in ast.iter_child_nodes(node):
        yield from _node_examples(
            child, f"{name}.{getattr(child, 'name', '')}" if hasattr(child, "name") else name
        )


def _rust_examples(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code blocks of doc comments, with their attributes."""
    block: list[str] | None = None
    for line in text.split("\n"):
        comment = _COMMENT.match(line)
        is_fence = comment is not None and comment[1].lstrip().startswith(("```", "~~~"))
        if block is not None and (is_fence or comment is None):
            yield "", "\n".join(block)
            block = None
        elif is_fence and comment is not None:
            block = [comment[1].strip()]
        elif block is not None and comment is not None:
            block.append(comment[1].rstrip())
