"""Location of a case by its id, and thus its possible authors. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from fnmatch import translate

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
    return not any(package.startswith(f"{other}/") for other in packages)
