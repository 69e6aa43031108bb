"""Examples of documentation that are run as tests: doctests of Python and of text files, and those
of Rust's doc comments. Pure.

They stand beside the code, or in a README, and so in what an author changes. One whose example is
not as on the base proves nothing by it.
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
from moothall.ranking.test_authorship import lies_in_module, same_file

_TEXTS = (".rst", ".md", ".txt")
_COMMENT = re.compile(r"^\s*//[/!] ?(.*)$")
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


def altered_examples(diff: str, base: Mapping[str, str]) -> tuple[str, ...]:
    """Return the changed files whose examples are not all as they were. `base`: the texts before of
    those that were there; a text file is altered where it is changed.
    """
    found = []
    for part in file_diffs(diff):
        if part.path.endswith(_TEXTS):
            found.append(part.path)
        elif part.path in base and part.path.endswith((".py", ".rs")):
            read = _of_python if part.path.endswith(".py") else _of_rust
            before, after = (
                Counter(read(base[part.path])),
                Counter(read(part.apply(base[part.path]))),
            )
            if before - after:
                found.append(part.path)
    return tuple(found)


def is_example_of(case: str, paths: Iterable[str]) -> bool:
    """Whether a case is an example of one of these files, by what its runner calls it."""
    head, mark, rest = case.partition("::")
    if head.endswith(" doc"):
        head = posixpath.normpath(rest.partition(" - ")[0])
    elif not mark and _DOTTED.fullmatch(head):
        return any(lies_in_module(head, path) for path in paths)
    return any(
        same_file(head, path)
        for path in paths
        if path.endswith((".py", *_TEXTS)) or case.partition("::")[0].endswith(" doc")
    )


def _of_python(text: str) -> Iterator[tuple[str, str]]:
    """Yield by the name of what it documents all that a docstring runs: a line more may make
    another example hold.
    """
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _read_examples(ast.parse(text), "")


def _read_examples(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        said = ast.get_docstring(node) or ""
        if ">>>" in said:
            try:
                examples = doctest.DocTestParser().get_examples(said)
                yield (
                    name,
                    "\0".join(f"{item.source}\n{item.want}\n{item.exc_msg}" for item in examples),
                )
            except ValueError:
                yield name, said
    for child in ast.iter_child_nodes(node):
        yield from _read_examples(
            child, f"{name}.{getattr(child, 'name', '')}" if hasattr(child, "name") else name
        )


def _of_rust(text: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of code of doc comments, with what is said of how they are run."""
    block: list[str] | None = None
    for line in text.split("\n"):
        said = _COMMENT.match(line)
        fenced = said is not None and said[1].lstrip().startswith(("```", "~~~"))
        if block is not None and (fenced or said is None):
            yield "", "\n".join(block)
            block = None
        elif fenced and said is not None:
            block = [said[1].strip()]
        elif block is not None and said is not None:
            block.append(said[1].rstrip())
