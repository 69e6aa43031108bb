"""Real agents of other projects in one council with our own: Claude Code, Codex, opencode, Qwen
Code and mini-swe-agent, from the package registries, with a scripted model that calls tools
natively. The process is killed in the middle, and the council goes on.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import QUICK, SOLVED, WRONG, Command
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import NativeReply, scripted_model, seat_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm installs four of the agents"),
]

DOCS = Path(__file__).parents[2] / "docs" / "harnesses.md"
KEY = "sk-key-of-these-tests-1234567890"
SHELLS = re.compile("(?i)^bash$|shell|exec_command")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent ends


def read_documented_agents(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the installation and the command of each agent that the docs list, for `folder`."""
    row_pattern = r"(?m)^\| ([\w -]+) [\d.]+ \| `(.+)` \| `(.+)` \|$"
    rows = re.findall(row_pattern, DOCS.read_text("utf-8"))
    placed = [[part.replace("/opt/agents", str(folder)) for part in row] for row in rows]
    return {
        name.split()[0].lower(): (install, json.loads(command)) for name, install, command in placed
    }


class Model:
    """A model that has each agent use its own shell: first to print the time, then to write the
    function, three of the six wrongly. So no majority is right early, and no agent is stopped
    before its answer.

    asked: how often each agent requested a reply after this number of tool calls. Requests after
    two calls wait until `go_on` is set.
    """

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        self.go_on = asyncio.Event()

    @property
    def waiting(self) -> int:
        """The number of agents that have made two calls."""
        return sum(call_count == 2 for _, call_count in self.asked)

    async def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> NativeReply:
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        names = list(tools)
        shell = next(
            (name for name in names if re.search("(?i)^bash$|shell|exec_command", name)), ""
        )
        call_count = sum(len(message.get("tool_calls") or ()) for message in body["messages"])
        if not shell:
            return NativeReply(text="I added the function.")
        self.asked[seat_of(headers), call_count] += 1
        if call_count < 2:
            text = WRONG if seat_of(headers).endswith(("1", "2", "3")) else SOLVED
            line = f"cat >> src/utils.py <<'END'\n{text}END" if call_count else "date +%s%N"
            properties = tools[shell]["parameters"]["properties"]
            further = {"description": "a step"} if "description" in properties else {}
            argument = "command" if "command" in properties else "cmd"
            return NativeReply(((shell, {argument: line, **further}),))
        await self.go_on.wait()
        if "submit" in names:
            return NativeReply((("submit", {"summary": "I added the function."}),))
        if names == ["bash"] and call_count == 2:
            return NativeReply(((shell, {"command": SUBMIT}),))
        return NativeReply(text="I added the function.")


async def until_recorded(command: Command, calls: int) -> None:
    """Wait until this many calls are in the log; each takes some milliseconds to arrive."""
    while (await command("log", "tail", "--task", "task-killed")).out.count("model.called") < calls:
        await asyncio.sleep(0.2)


async def test_a_council_of_six_agents_of_six_projects_is_killed_and_goes_on(
    tmp_path: Path,
) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    documented_agents = read_documented_agents(agents)
    assert set(documented_agents) == {"claude", "codex", "opencode", "qwen", "mini-swe-agent"}
    for install, _ in documented_agents.values():
        command_line = install.replace("python -m", f"{sys.executable} -m")
        subprocess.run(["/bin/sh", "-c", command_line], check=True, capture_output=True)
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    script = Model()
    async with scripted_model(script.answer, tools=True, api_key=KEY) as model:
        command = Command(
            tmp_path / "data",
            model.base_url,
            QUICK
            | {
                "MOOTHALL_LLM__API_KEY": KEY,
                "MOOTHALL_LIMITS__PATIENCE": "0",
                "MOOTHALL_SANDBOX__TOOLCHAINS": json.dumps([str(agents)]),
                "MOOTHALL_MODELS": json.dumps(
                    {name: {"harness": argv} for name, (_, argv) in documented_agents.items()}
                ),
            },
        )
        args = (
            *("deliberate", "Add hello_world() function to src/utils.py", "--repo", str(repo)),
            *("--agents", "6", "--model", ",".join(["default", *documented_agents]), "--json"),
            *("--task-id", "task-killed"),
        )
        process = await command.start(*args)
        async with asyncio.timeout(400):
            while script.waiting < 6:
                assert process.returncode is None
                await asyncio.sleep(0.2)
        await until_recorded(command, 12)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        script.go_on.set()
        result = await command(*args, seconds=400)
    assert result.code == 0, result.err
    outcome = result.document
    assert {seat["status"] for seat in outcome["seats"]} == {"proposed"}, outcome["seats"]
    assert all(seat["usage"]["calls"] >= 2 for seat in outcome["seats"])
    assert outcome["evidence_level"] == "proven"
    assert len(outcome["results"]) == 6
    repeated = {key: times for key, times in script.asked.items() if key[1] < 2 and times > 1}
    assert not repeated, "recorded calls are not made again"
    assert outcome["winner_id"] in {f"agent-dev-00{number}" for number in (4, 5, 6)}
    assert KEY not in result.out
    shutil.rmtree(agents)  # a gigabyte and a half
