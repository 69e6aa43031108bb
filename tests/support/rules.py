"""A project with many small bugs, and scripted models that fix only some of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moothall.domain.ids import digest
from moothall.testing.model import Answer, Reply, phase_of
from support.repos import Repo, make_repo

AREAS = ("billing", "wording")
_FILE = re.compile(r"(?P<path>(?P<area>billing|wording)/rule_(?P<number>\d\d)\.py)")


def _source(number: int, *, fixed: bool) -> str:
    offset = number if fixed else 0
    return f'"""Rule {number}."""\n\n\ndef apply(value):\n    return value * 2 + {offset}\n'


def _test(area: str, number: int) -> str:
    return (
        f"from {area}.rule_{number:02} import apply\n\n\n"
        f"def test_rule_{number:02}():\n    assert apply(10) == {20 + number}\n"
    )


def make_rules_repo(path: Path, bugs: int) -> Repo:
    """Make a repository in whose history this many bugs are fixed, in two areas by turns."""
    numbers = range(1, bugs + 1)
    places = {number: AREAS[number % len(AREAS)] for number in numbers}
    files = {
        "pyproject.toml": (
            '[project]\nname = "rules"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\n'
            'pythonpath = ["."]\n'
        ),
        ".gitignore": "__pycache__/\n*.egg-info/\n",
        "tests/test_files.py": "def test_files():\n    assert True\n",
        **{
            f"{area}/rule_{number:02}.py": _source(number, fixed=False)
            for number, area in places.items()
        },
    }
    repo = make_repo(path, files)
    for number, area in places.items():
        repo.commit(
            {
                f"{area}/rule_{number:02}.py": _source(number, fixed=True),
                f"tests/test_{area}_{number:02}.py": _test(area, number),
            },
            f"Fix the rule in {area}/rule_{number:02}.py\n\napply(10) has to be {20 + number}.",
        )
    return repo


def solves(model: str, path: str, share: float) -> bool:
    """Return whether a model solves the task about a file: always the same, for this share."""
    return int(digest(model, path)[:8], 16) / 16**8 < share


def answer_with(skills: Mapping[str, Mapping[str, float]]) -> Answer:
    """Return models that solve a share of the tasks of each area, by model and area. A model that
    does not solve a task writes a wrong fix; one that does writes a test as well.
    """

    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        if phase_of(headers) in {"critique", "verify"}:
            return json.dumps({"score": 7, "met": [], "unmet": [], "comment": "reads well"})
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        match = _FILE.search(prompt)
        if match is None:
            return json.dumps({"thought": "", "finish": "There is no rule."})
        path, area, number = match["path"], match["area"], int(match["number"])
        right = solves(body["model"], path, skills[body["model"]][area])
        source = _source(number if right else number + 1, fixed=True)
        actions = [{"tool": "files.write", "args": {"path": path, "content": source}}]
        if right:
            test = {"path": f"tests/test_own_{number:02}.py", "content": _test(area, number)}
            actions.append({"tool": "files.write", "args": test})
        return json.dumps({"thought": "fix it", "actions": actions})

    return answer
