"""Relevance of a failing test to the change or the task. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moothall.ranking.test_authorship import lies_in_module, may_be_same_file

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
)
"""Messages of Python, Go, Rust and JavaScript that name what a test needs to be loaded or built."""
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
