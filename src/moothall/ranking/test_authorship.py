"""What a case's id says of where it lies, and so of who may have written it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from fnmatch import translate

COMPARED = (
    "**/testdata/**",
    "**/__snapshots__/**",
    "**/__mocks__/**",
    "**/__fixtures__/**",
    "*.snap",
    "*.golden",
    "*.approved.*",
)
"""What tests compare with, or stands in for what they do not test, in gitignore style: it holds no
case, and is as on the base in a proof.
"""
_SEPARATOR = re.compile(r"::| > |[./\[]")
_COMPARED = re.compile("|".join(map(translate, COMPARED)))
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


def containers(case: str) -> list[str]:
    """Return what a case may be a part of, the innermost last: its file, package, module, class or
    parent test.
    """
    return [case[: match.start()] for match in _SEPARATOR.finditer(case) if match.start()]


def may_be_own(
    case: str, own_tests: Sequence[str], packages: AbstractSet[str] = frozenset()
) -> bool:
    """Whether the author of the test files `own_tests` may have had a hand in a case.

    A case says where it lies: `tests/test_a.py::test_x`, `tests.test_a.TestA.test_x`,
    `example.org/module/package::TestX` (of which any file of the package's folder may be a part) or
    `crate tests/a.rs::x`. One that says nothing may be anyone's. `packages` are all that occur
    beside it.
    """
    place, separator, _ = case.partition("::")
    place = place.rpartition(" ")[2]
    if not separator and not _DOTTED.fullmatch(place):
        return bool(own_tests)
    return any(_may_lie_in(place, path, packages) for path in own_tests)


def _may_lie_in(place: str, path: str, packages: AbstractSet[str]) -> bool:
    if _COMPARED.match(f"/{path}"):
        return False
    if path.endswith(".go"):
        return _in_package(place, path.rpartition("/")[0], packages)
    if same_file(place, path):
        return True
    if _DOTTED.fullmatch(place):
        return lies_in_module(place, path)
    return "." not in place.rsplit("/", 1)[-1]


def same_file(one: str, other: str) -> bool:
    """Whether two paths may be the same file, seen from different folders."""
    one, other = one.removeprefix("./"), other.removeprefix("./")
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def lies_in_module(dotted: str, path: str) -> bool:
    """Whether a dotted name lies in the module at `path`, or at its end: a runner may start in a
    folder.
    """
    parts = path.rsplit(".", 1)[0].split("/")
    modules = [".".join(parts[at:]) for at in range(len(parts))]
    return any(dotted == module or dotted.startswith(f"{module}.") for module in modules)


def _in_package(package: str, folder: str, packages: AbstractSet[str]) -> bool:
    if folder:
        return package == folder or package.endswith(f"/{folder}")
    return not any(
        package.startswith(f"{other}/") for other in packages
    )  # may be the module's root
