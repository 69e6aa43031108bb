"""Thirty agents on a real server: never more than four at work, and all report progress on the bus.
For timings see docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from command import QUICK, Command, answer_turns_with, most_at_once, turn
from moothall.testing.model import call_id_of, scripted_model
from support.repos import make_repo

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

COUNT, AT_ONCE = 30, 4
SPEC = """metadata: {{name: a{0:02}}}
objectives:
- {{description: Write note-{0:02}.txt, validation: test -f note-{0:02}.txt}}
"""


async def test_at_most_four_of_thirty_agents_run_concurrently(tmp_path: Path) -> None:
    make_repo(tmp_path / "repo", {"Makefile": "test:\n\ttrue\n"})
    (files := tmp_path / "agents").mkdir()
    for number in range(COUNT):
        (files / f"{number:02}.yaml").write_text(SPEC.format(number), encoding="utf-8")
    ready: set[str] = set()
    barrier = asyncio.Barrier(AT_ONCE)

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        """Let the first four wait for each other, so that four run at once on a machine of any
        speed.
        """
        task = call_id_of(headers).partition("/")[0]
        if task not in ready:
            ready.add(task)
            if len(ready) <= AT_ONCE:
                await barrier.wait()
        match = re.search(r"Write (note-\d\d\.txt)", str(body["messages"]))
        assert match
        return turn("files.write", path=match[1], content="x\n")

    async with scripted_model(answer_turns_with(answer)) as model:
        command = Command(tmp_path / "data", model.base_url, QUICK)
        run = (
            "agents",
            "run",
            str(files),
            "--repo",
            str(tmp_path / "repo"),
            "--at-once",
            str(AT_ONCE),
            "--json",
        )
        result = await command(*run, seconds=1800)
        assert result.code == 0, result.out + result.err
        listed = await command("list", "--json", "--limit", "100")
        tail = await command("log", "tail", "--json")
    assert {end["state"] for end in result.document["agents"]} == {"completed"}
    tasks = listed.document["tasks"]
    assert (len(tasks), most_at_once(tasks)) == (COUNT, AT_ONCE)
    assert ready == {task["task_id"] for task in tasks}
    events = [json.loads(line) for line in tail.out.splitlines()]
    steps = [
        event["data"]
        for event in events
        if event["type"] == "moothall.agent.progress" and _agent(event["data"])
    ]
    by_agent = {
        agent: [*agent_steps] for agent, agent_steps in groupby(sorted(steps, key=_agent), _agent)
    }
    assert len(by_agent) == COUNT
    for agent_steps in by_agent.values():
        progress = [step["progress"] for step in agent_steps]
        assert progress == sorted(progress)
        assert (progress[-1], agent_steps[-1]["metrics"]["turns"] >= 1) == (1.0, True)


def _agent(data: Mapping[str, Any]) -> str:
    return str(data.get("agent", ""))
