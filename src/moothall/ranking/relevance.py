"""Whether a failing test concerns the change or the task. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moothall.ranking.test_authorship import lies_in_module, same_file

_WORD = re.compile(r"\w+")
_LAST_PART = re.compile(r"::| > |[./]")
_RELATIVE = re.compile(r"""["'](?:\.{1,2}/[^"'\n]{0,300}|\.{1,2})["']""")
_GENERAL = frozenset(
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
"""Names of files and folders that say nothing of what is in them."""
_READ = 200_000
_MISSING = re.compile(
    r"""(?:cannot import name|No module named|has no attribute|NameError: name"""
    r"""|export named|exported member|Property"""
    r"""|Cannot find (?:module|name))\s+['"](?P<quoted>[^'"\n]{1,200})['"]"""
    r"|undefined: (?P<go>[\w.]+)|\.(?P<field>\w+) undefined"
    r"|(?:cannot find [\w ]{1,40}|no [\w ]{1,40} named|unresolved imports?) "
    r"`(?P<rust>[^`\n]{1,200})`"
    r"|\b(?P<called>[\w.]+) is not (?:a function|a constructor|defined)"
)
"""What a test could not be loaded or built without, in the words of Python, Go, Rust and
JavaScript.
"""
_NAME = re.compile(r"[A-Za-z_]\w*")


def find_test_file(case: str, files: Sequence[str]) -> str:
    """Return the file that a case lies in, '' if its name does not say so."""
    head = case.partition("::")[0].rpartition(" ")[2]
    if head in files:
        return head
    names = [path for path in files if same_file(head, path)] if "/" in head or "." in head else []
    dotted = [path for path in files if path.endswith(".py") and lies_in_module(head, path)]
    return next(iter([*names, *dotted]), "")


def concerns_change(case: str, text: str, detail: str, changed: Sequence[str], task: str) -> bool:
    """Whether a case concerns a change of the files `changed`.

    It does if the task names it, if its failure on the base (`detail`) names a changed file, or if
    its file (`text`) names a changed file, its folder, or imports by relative paths. Unknown text,
    Go and Rust count as concerned: their tests are compiled with the package.
    """
    last = _LAST_PART.split(case.partition("[")[0])[-1]
    if not text or last in set(_WORD.findall(task)):
        return True
    if any(path in detail or path.rpartition("/")[2] in detail for path in changed):
        return True
    if any(path.endswith((".go", ".rs")) for path in changed):
        return True
    words = set(_WORD.findall(text[:_READ]))
    names = {part.partition(".")[0] for path in changed for part in path.split("/")} - _GENERAL
    scripts = any(
        path.rpartition(".")[2] in {"js", "mjs", "cjs", "ts", "mts", "cts", "jsx", "tsx"}
        for path in changed
    )
    return not names or bool(names & words) or (scripts and bool(_RELATIVE.search(text[:_READ])))


def missing_names(errors: str) -> set[str]:
    """Return the names without which tests could not be loaded or built: the last part of each,
    `half` of `shop.half`.
    """
    return {
        part
        for match in _MISSING.finditer(errors)
        for part in _NAME.findall(match[match.lastgroup or 0])[-1:]
    }


def names_in(task: str) -> set[str]:
    """Return the identifiers in a text."""
    return set(_NAME.findall(task))
