"""docs/architecture.md names every room, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import moothall

HOUSE = Path(moothall.__file__).parent
TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
ROOMS = {path.stem for path in HOUSE.iterdir() if (path / "__init__.py").exists()} | {
    path.stem for path in HOUSE.glob("*.py") if not path.stem.startswith("__")
}


def test_every_room_is_in_the_table_and_no_other() -> None:
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", TEXT.partition("## To change")[0])) == ROOMS


def test_every_room_is_in_the_picture() -> None:
    picture = TEXT.partition("## Rooms")[2].split("```")[1]
    assert set(re.findall(r"\w+", picture)) >= ROOMS


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", TEXT))
    assert len(named) > 30
    assert not [name for name in named if not (HOUSE / name).exists()]
