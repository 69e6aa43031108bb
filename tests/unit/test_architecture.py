"""docs/architecture.md names every room, and no page of docs a file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import moothall

ROOT = Path(__file__).parents[2]
HOUSE = Path(moothall.__file__).parent
TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = {path.stem for path in HOUSE.iterdir() if (path / "__init__.py").exists()} | {
    path.stem for path in HOUSE.glob("*.py") if not path.stem.startswith("__")
}


def test_every_room_is_in_the_table_and_no_other() -> None:
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", TEXT.partition("## To change")[0])) == ROOMS


def test_every_room_is_in_the_picture() -> None:
    picture = TEXT.partition("## Rooms")[2].split("```")[1]
    assert set(re.findall(r"\w+", picture)) >= ROOMS


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", page.read_text()))
    assert not [
        name
        for name in named
        if not any((start / name).exists() for start in (HOUSE, ROOT, page.parent))
    ]
