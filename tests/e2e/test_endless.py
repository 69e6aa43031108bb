"""A bug that is an endless loop, as in QuixBugs' find_first_in_sorted: the checks end, and so does
the deliberation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import Command, answer_turns_with, turn
from moothall.testing.model import scripted_model, seat_of
from support.repos import make_repo

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

FILES = {
    "src/find.py": """def find_first(items, wanted):
    low, high = 0, len(items)
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == wanted and (middle == 0 or items[middle - 1] != wanted):
            return middle
        if wanted <= items[middle]:
            high = middle
        else:
            low = middle + 1
    return -1
""",
    "tests/test_find.py": """import pytest
from find import find_first

@pytest.mark.parametrize(("wanted", "place"), [(5, 2), (2, -1), (4, 1), (1, -1), (0, -1)])
def test_find(wanted, place):
    assert find_first([3, 4, 5, 5, 6], wanted) == place
""",
    "pyproject.toml": (
        '[project]\nname = "sample"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\npythonpath = '
        '["src"]\n'
    ),
}
LOOPS = {f"tests/test_find.py::test_find[{value}--1]" for value in (2, 1, 0)}


def propose(_body: dict[str, Any], headers: Mapping[str, str]) -> str:
    """Reply correctly as the second seat; the changes of all others leave the loop in place."""
    if seat_of(headers).endswith("2"):
        return turn("files.edit", path="src/find.py", old="low <= high", new="low < high")
    number = headers.get("X-Request-Id", "").replace("/", " ")
    return turn("files.append", path="src/find.py", content=f"# {number}\n")


async def test_the_right_answer_wins_and_looping_seats_do_not_delay_it(
    tmp_path: Path,
) -> None:
    repo = make_repo(tmp_path / "repo", FILES)
    limits = {"MOOTHALL_WORKSPACE__CHECK_FLOOR_SECONDS": "24"}
    async with scripted_model(answer_turns_with(propose)) as server:
        command = Command(tmp_path / "data", server.base_url, limits)
        result = await command(
            "deliberate",
            "--repo",
            str(repo.path),
            "--json",
            "find_first does not end for some: fix it",
        )
    assert result.code == 0, result.err
    assert (result.document["status"], result.document["proven"]) == ("COMPLETED", True)
    assert result.document["winner_id"].endswith("2")
    assert "low < high" in repo.git("show", f"{result.document['branch']}:src/find.py")
    reasons = " ".join(result.document["results"][0]["reasons"])
    assert all(case in reasons for case in LOOPS), reasons
