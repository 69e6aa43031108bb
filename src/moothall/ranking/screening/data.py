"""Files without code that a patch changes and that tests name: what they compare with may stand there. Pure.

As with all that reaches for what judges, a person should look: it may be what the code reads, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from moothall.ranking.syntax.diffs import file_diffs

_KEPT = re.compile(
    r"(?:^|/)(?:pyproject\.toml|setup\.cfg|(?:tox|pytest)\.ini|go\.(?:mod|sum|work)|Cargo\.(?:toml|lock)|tsconfig\.json|Makefile)$"
    r"|^(?:\.git\w+|\.editorconfig|\.pre-commit-config\.yaml|AUTHORS|CONTRIBUT\w+|HISTORY|CHANGES|NEWS|requirements)[^/]*$"
)
"""What is as on the base in a proof, whatever a patch makes of it, and what at the top of a tree only people and set-up read."""
_CODE = re.compile(
    r"\.(?:pyi?|[cm]?[jt]sx?|go|rs|c|h|cc|cpp|hpp|s|S|sh)$|(?:^|/)(?:package\.json|LICENSE|README|CHANGELOG)[^/]*$"
)


def data_files(diff: str, own_tests: Iterable[str]) -> tuple[str, ...]:
    """Return the files without code that a diff changes or brings, outside of its author's tests."""
    tests = frozenset(own_tests)
    return tuple(
        part.path
        for part in file_diffs(diff)
        if part.path not in tests and not _CODE.search(part.path) and not _KEPT.search(part.path)
    )


def find_mentions(paths: Iterable[str], tests: Mapping[str, str]) -> tuple[str, ...]:
    """Return those that a test file names, as `path:1: …`. `tests`: the base's, by path."""
    found = []
    for path in paths:
        name = re.compile(rf"(?<![\w.-]){re.escape(path.rpartition('/')[2])}(?![\w-])")
        by = next((test for test, text in tests.items() if name.search(text)), "")
        if by:
            found.append(f"{path}:1: {by} names it, and may compare with what stands there")
    return tuple(found)
