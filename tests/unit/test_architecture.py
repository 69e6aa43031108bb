"""docs/architecture.md names every package, and no page of docs a file that does not exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import moothall

ROOT = Path(__file__).parents[2]
SOURCE = Path(moothall.__file__).parent
OLD_WORDS = re.compile(
    r"(?<![a-z])(houses?|desks?|doors?|rosters?|purses?|turnstiles?|narrators?|onlookers?|households?|visitors|lends?|hallways?|chronicles?)(?![a-z])",
    re.IGNORECASE,
)
OLD_STEMS = (
    "house",
    "desk",
    "door",
    "roster",
    "purse",
    "turnstile",
    "narrator",
    "onlooker",
    "visitors",
    "lend",
    "hallway",
    "chronicle",
)
"""Each match of `OLD_WORDS` contains one of them. Searching for them is ten times faster."""
ON_THE_WIRE = re.compile(r"house\.mark|requests\.house|\"house\"|moothall/house|house\{WORKER")
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {path.stem for path in SOURCE.iterdir() if (path / "__init__.py").exists()} | {
    path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")
}


def test_the_table_lists_exactly_the_packages() -> None:
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", TEXT.partition("## To change")[0])) == PACKAGES


def test_every_package_is_in_the_diagram() -> None:
    picture = TEXT.partition("## Packages")[2].split("```")[1]
    assert set(re.findall(r"\w+", picture)) >= PACKAGES


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_named_file_exists(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", page.read_text()))
    assert not [
        name
        for name in named
        if not any((start / name).exists() for start in (SOURCE, ROOT, page.parent))
    ]


def test_no_word_of_the_old_vocabulary_is_used() -> None:
    places = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.html"), *(ROOT / "docs").rglob("*.md")]
    places += [
        path
        for folder in ("tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    ]
    assert len(places) > 500
    matches = [
        f"{place.relative_to(ROOT)}:{number}: {line.strip()}"
        for place in [*places, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        if "pb" not in place.parts
        for number, line in _suspicious_lines(place)
        if OLD_WORDS.search(ON_THE_WIRE.sub("", line)) and not _is_glossary(place, line)
    ]
    assert matches == []


PRIVATE_TEST_NAMES = re.compile(
    r"^ *(?:async )?def (test_(?:what|who|whoever|whatever|whose|where|of|those)_\w*"
    r"|test_\w*_(?:said|told|tells|hears|heard)(?:_\w*)?)\(",
    re.MULTILINE,
)
"""Tests are named by a subject and what is true of it, not by a relative clause."""


def test_tests_are_named_by_a_subject() -> None:
    matches = [
        f"{path.relative_to(ROOT)}: {match[1]}"
        for path in (ROOT / "tests").rglob("*.py")
        for match in PRIVATE_TEST_NAMES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert matches == []


def _suspicious_lines(place: Path) -> Iterator[tuple[int, str]]:
    text = place.read_text(encoding="utf-8")
    lowered = text.lower()
    if any(stem in lowered for stem in OLD_STEMS):
        yield from enumerate(text.splitlines(), 1)


def _is_glossary(place: Path, line: str) -> bool:
    return place.name == "glossary.md" and line.startswith("| ")


MAX_FUNCTION_LINES = 60
"""The most lines of a function, without its decorators."""


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{place} {name}: {lines} lines"
        for place, name, lines in _definitions().functions
        if lines > MAX_FUNCTION_LINES
    ]
    assert long == [], f"functions have at most {MAX_FUNCTION_LINES} lines: split them by meaning"


MAX_COLLABORATORS = 12
"""The most fields, or arguments of the constructor, of a class that is no record of data."""
RECORDS = frozenset(
    [
        "CheckDocument",
        "CheckRow",
        "Deliberation",
        "DeliberationRequest",
        "ExecutorSetup",
        "ServerKind",
        "_Standing",
        "Evidence",
        "Outcome",
        "Parked",
        "PolicyQuestion",
        "Profile",
        "Report",
        "Result",
        "SeatProgress",
        "Spec",
        "StoryState",
        "TaskOptions",
        "TaskView",
        "VerdictDocument",
        "Assessment",
        "AttemptState",
        "Capabilities",
        "DeliberationState",
        "ScriptedModel",
        "Summary",
        "ToolSpec",
    ]
)


def test_no_class_has_too_many_collaborators() -> None:
    wide = [
        f"{place} {name}: {count}"
        for place, name, count in _definitions().classes
        if not name.endswith("Settings") and name not in RECORDS and count > MAX_COLLABORATORS
    ]
    assert wide == [], "group the collaborators by meaning"


class _Definitions(NamedTuple):
    """Place and name of each function with its lines, and of each class with its arguments."""

    functions: list[tuple[str, str, int]]
    classes: list[tuple[str, str, int]]


@cache
def _definitions() -> _Definitions:
    definitions = _Definitions([], [])
    for path in SOURCE.rglob("*.py"):
        if "pb" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                if isinstance(node, ast.ClassDef):
                    definitions.classes.append((place, node.name, _count_arguments(node)))
                else:
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    definitions.functions.append((place, node.name, lines))
    return definitions


def _count_arguments(node: ast.ClassDef) -> int:
    """Count the fields of a class, or the arguments of its constructor if there are more; not the
    private fields.
    """
    fields = [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not item.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(item.annotation)
    ]
    constructors = [
        len(item.args.args) + len(item.args.kwonlyargs) - 1
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    return max([len(fields), *constructors])
