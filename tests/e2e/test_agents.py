"""Agents from files, run by the real command: the shipped examples on our own sample repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from house import SOLVED, Command, git, scripted, turn
from moothall.repositories.sample import make_sample_repository
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[2] / "agents"
TEST = "from src import utils\n\n\ndef test_negative():\n    assert utils.add(-2, -3) == -5\n"


def work(body: dict[str, Any], _headers: Mapping[str, str]) -> str:
    """What each agent's seats do: each writes what its objective says, and the documentation reads what the others made."""
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    if "Write HANDBOOK.md" in prompt:
        return turn("files.write", path="HANDBOOK.md", content="hello_world() greets, add() adds.\n")
    if "negative numbers" in prompt:
        return turn("files.write", path="tests/test_negative.py", content=TEST)
    return turn("files.append", path="src/utils.py", content=SOLVED)


async def test_the_examples_run_in_their_order_on_what_came_before(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    async with scripted_model(scripted(work)) as model:
        quick = {
            "MOOTHALL_WORKSPACE__FLAKY_SECONDS": "0",
            "MOOTHALL_LIMITS__COUNTER_PROOFS": "0",
            "MOOTHALL_LLM__APPROACHES": "off",
        }
        command = Command(tmp_path / "data", model.base_url, quick)
        done = await command("agents", "run", str(EXAMPLES), "--repo", str(repo), "--run", "first", "--json")
        assert done.code == 0, done.out + done.err
    ended = {end["name"]: end for end in done.document["agents"]}
    states = [(name, end["state"]) for name, end in ended.items()]
    assert states == [(name, "completed") for name in ("greeting", "negative-numbers", "handbook")]
    files = git(repo, "ls-tree", "-r", "--name-only", ended["handbook"]["branch"]).split()
    assert {"HANDBOOK.md", "tests/test_negative.py"} <= set(files)
    assert "hello_world" in git(repo, "show", f"{ended['handbook']['branch']}:src/utils.py")


async def test_wrong_files_are_named_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("metadata: {name: a}\nobjectives:\n  - descripton: x\n", encoding="utf-8")
    command = Command(tmp_path / "data", "http://127.0.0.1:9/v1")
    done = await command("agents", "validate", str(EXAMPLES), str(tmp_path / "bad.yaml"))
    assert (done.code, done.out.splitlines()[-1]) == (1, "3 agents are right, 1 places are wrong")
    assert "bad.yaml, line 3: objectives.0: 'descripton' is not known here; did you mean description?" in done.err
    done = await command("agents", "run", str(tmp_path / "bad.yaml"))
    assert (done.code, "nothing is run" in done.err) == (2, True)
    done = await command("agents", "list", str(EXAMPLES))
    assert [line.split()[0] for line in done.out.splitlines()] == ["greeting", "negative-numbers", "handbook"]
