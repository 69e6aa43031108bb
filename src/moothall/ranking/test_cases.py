"""Test cases: their possible authors, their relevance to a change, and documentation examples.
Pure.
"""

from __future__ import annotations

import ast
import doctest
import posixpath
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from fnmatch import translate

from moothall.ranking.diffs import file_diffs

# Location of a case by its id, and thus its possible authors. Pure.


EXPECTED_RESULTS = (
    "**/testdata/**",
    "**/__snapshots__/**",
    "**/__mocks__/**",
    "**/__fixtures__/**",
    "*.snap",
    "*.golden",
    "*.approved.*",
)
"""Patterns, in gitignore style, of files with expected results, mocks and fixtures. They contain no
cases, and are those of the base in a proof.
"""
_SEPARATOR = re.compile(r"::| > |[./\[]")
_EXPECTED_RESULTS = re.compile("|".join(map(translate, EXPECTED_RESULTS)))
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


def containers(case: str) -> list[str]:
    """Return the names that may contain a case, the innermost last: file, package, module, class or
    parent test.
    """
    return [case[: match.start()] for match in _SEPARATOR.finditer(case) if match.start()]


def may_be_own(
    case: str, own_tests: Sequence[str], packages: AbstractSet[str] = frozenset()
) -> bool:
    """True if the author of the test files `own_tests` may have written or changed a case.

    The case's id tells its location: `tests/test_a.py::test_x`, `tests.test_a.TestA.test_x`,
    `example.org/module/package::TestX` (any file of the package's folder) or `crate tests/a.rs::x`.
    A case without a location may be anyone's.

    packages: all packages in the same run.
    """
    location, separator, _ = case.partition("::")
    location = location.rpartition(" ")[2]
    if not separator and not _DOTTED.fullmatch(location):
        return bool(own_tests)
    return any(_may_be_in_file(location, path, packages) for path in own_tests)


def _may_be_in_file(location: str, path: str, packages: AbstractSet[str]) -> bool:
    if _EXPECTED_RESULTS.match(f"/{path}"):
        return False
    if path.endswith(".go"):
        return _is_in_package(location, path.rpartition("/")[0], packages)
    if may_be_same_file(location, path):
        return True
    if _DOTTED.fullmatch(location):
        return lies_in_module(location, path)
    return "." not in location.rsplit("/", 1)[-1]


def may_be_same_file(first: str, second: str) -> bool:
    """True if two paths may be the same file, seen from different folders."""
    first, second = first.removeprefix("./"), second.removeprefix("./")
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")


def lies_in_module(dotted: str, path: str) -> bool:
    """True if a dotted name is in the module at `path`, or at a suffix of its path, since a runner
    may start in a folder.
    """
    parts = path.rsplit(".", 1)[0].split("/")
    modules = [".".join(parts[start:]) for start in range(len(parts))]
    return any(dotted == module or dotted.startswith(f"{module}.") for module in modules)


def _is_in_package(package: str, folder: str, packages: AbstractSet[str]) -> bool:
    if folder:
        return package == folder or package.endswith(f"/{folder}")
    # The package may be the root of the module.
    return not any(package.startswith(f"{candidate}/") for candidate in packages)


# Relevance of a failing test to the change or the task. Pure.


_WORD = re.compile(r"\w+")
_LAST_PART = re.compile(r"::| > |[./]")
_RELATIVE_IMPORT = re.compile(r"""["'](?:\.{1,2}/[^"'\n]{0,300}|\.{1,2})["']""")
_GENERIC_NAMES = frozenset(
    {
        "index",
        "main",
        "lib",
        "mod",
        "src",
        "__init__",
        "init",
        "py",
        "js",
        "ts",
        "go",
        "rs",
        "test",
        "tests",
    }
)
"""Names of files and folders that do not describe their content."""
_MAX_READ_CHARS = 200_000
_MISSING = re.compile(
    r"""(?:cannot import name|No module named|has no attribute|NameError: name"""
    r"""|export named|exported member|Property"""
    r"""|Cannot find (?:module|name))\s+['"](?P<quoted>[^'"\n]{1,200})['"]"""
    r"|undefined: (?P<go>[\w.]+)|\.(?P<field>\w+) undefined"
    r"|(?:cannot find [\w ]{1,40}|no [\w ]{1,40} named|unresolved imports?) "
    r"`(?P<rust>[^`\n]{1,200})`"
    r"|\b(?P<called>[\w.]+) is not (?:a function|a constructor|defined)"
    r"|symbol: +(?:class|interface|method|variable) (?P<java>\w+)"
)
"""Messages of Python, Go, Rust, JavaScript and Java that name what a test needs to be built."""
_NAME = re.compile(r"[A-Za-z_]\w*")


def find_test_file(case: str, files: Sequence[str]) -> str:
    """Return the file of a case; '' if its name does not tell."""
    container = case.partition("::")[0].rpartition(" ")[2]
    if container in files:
        return container
    by_path = (
        [path for path in files if may_be_same_file(container, path)]
        if "/" in container or "." in container
        else []
    )
    by_module = [path for path in files if path.endswith(".py") and lies_in_module(container, path)]
    return next(iter([*by_path, *by_module]), "")


def concerns_change(case: str, text: str, detail: str, changed: Sequence[str], task: str) -> bool:
    """True if a case concerns a change of the files `changed`.

    text: the text of the case's file; '' if unknown.
    detail: the output of its failure on the base.

    This holds if the task names the case, if `detail` names a changed file, or if `text` names a
    changed file or its folder, or imports by relative paths. It holds for unknown text, and for Go
    and Rust, whose tests are compiled with the package.
    """
    test_name = _LAST_PART.split(case.partition("[")[0])[-1]
    if not text or test_name in set(_WORD.findall(task)):
        return True
    if any(path in detail or path.rpartition("/")[2] in detail for path in changed):
        return True
    if any(path.endswith((".go", ".rs")) for path in changed):
        return True
    text_words = set(_WORD.findall(text[:_MAX_READ_CHARS]))
    changed_names = {
        part.partition(".")[0] for path in changed for part in path.split("/")
    } - _GENERIC_NAMES
    changes_scripts = any(
        path.rpartition(".")[2] in {"js", "mjs", "cjs", "ts", "mts", "cts", "jsx", "tsx"}
        for path in changed
    )
    return (
        not changed_names
        or bool(changed_names & text_words)
        or (changes_scripts and bool(_RELATIVE_IMPORT.search(text[:_MAX_READ_CHARS])))
    )


def find_missing_names(errors: str) -> set[str]:
    """Return the names that tests lacked to be loaded or built: the last part of each, such as
    `half` of `shop.half`.
    """
    return {
        part
        for match in _MISSING.finditer(errors)
        for part in _NAME.findall(match[match.lastgroup or 0])[-1:]
    }


def find_identifiers(task: str) -> set[str]:
    """Return the identifiers in a text."""
    return set(_NAME.findall(task))


# Documentation examples that run as tests: doctests of Python and text files, and examples in Rust
# doc comments. Pure.
#
# Authors change the files that contain them. A file whose examples differ from the base proves
# nothing by them.


_TEXTS = (".rst", ".md", ".txt")
_COMMENT = re.compile(r"^\s*//[/!] ?(.*)$")


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
