"""Seats that agents of other projects work on: a small one of the tests' own, in a real sandbox."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import QUICK, SOLVED, WRONG, Command, answer_turns_with, turn
from moothall.cli.demo import make_sample_repository
from moothall.sandbox.bubblewrap import interpreter
from moothall.testing.model import Answer, ScriptedModel, scripted_model, seat_of
from support import harness_agent

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

KEY = "sk-key-of-these-tests-1234567890"
TASK = "Add hello_world() function to src/utils.py"
DONE = "That is all."
FIX = turn("files.append", path="src/utils.py", content=SOLVED)


def is_harness(body: Mapping[str, Any]) -> bool:
    """Return whether a request comes from the small agent: it has no system message."""
    return bool(body["messages"][0]["role"] == "user")


def turns_of(body: Mapping[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


async def prepare(tmp_path: Path, model: ScriptedModel) -> tuple[Command, Path]:
    """Return a command that knows the model `crew`, whose seats the small agent works on."""
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    agents = tmp_path / "agents"
    agents.mkdir()
    shutil.copy(harness_agent.__file__, agents / "agent.py")
    argv = [str(interpreter()), str(agents / "agent.py")]
    command = Command(
        tmp_path / "data",
        model.base_url,
        QUICK
        | {
            "MOOTHALL_LLM__API_KEY": KEY,
            "MOOTHALL_LIMITS__PATIENCE": "0",
            "MOOTHALL_SANDBOX__TOOLCHAINS": json.dumps([str(agents)]),
            "MOOTHALL_MODELS": json.dumps(
                {
                    "crew": {"harness": argv, "harness_env": {"CREW": "port {port}"}},
                    "lost": {"harness": ["no-such-agent", "acp"]},
                }
            ),
        },
    )
    return command, repo


async def deliberate(command: Command, repo: Path, *args: str) -> tuple[int, dict[str, Any]]:
    result = await command("deliberate", TASK, "--repo", str(repo), "--json", *args)
    assert result.out, result.err
    return result.code, result.document


def model_of(answer: Answer) -> Any:
    return scripted_model(answer, api_key=KEY)


async def test_built_in_and_foreign_agents_share_a_council_and_a_report(tmp_path: Path) -> None:
    def propose(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        if is_harness(body) and turns_of(body):
            return DONE
        is_wrong = seat_of(headers).endswith(("1", "2"))
        return turn("files.append", path="src/utils.py", content=WRONG if is_wrong else SOLVED)

    async with model_of(answer_turns_with(propose)) as model:
        command, repo = await prepare(tmp_path, model)
        code, outcome = await deliberate(command, repo, "--agents", "4", "--model", "default,crew")
    assert code == 0, outcome
    assert outcome["winner_id"] in {"agent-dev-003", "agent-dev-004"}
    assert outcome["evidence_level"] == "proven"
    seats = {seat["seat"]: seat for seat in outcome["seats"]}
    assert {seat["status"] for seat in seats.values()} == {"proposed"}, seats
    for name in ("agent-dev-002", "agent-dev-004"):
        assert seats[name]["usage"]["calls"] == 2, seats[name]
        assert seats[name]["usage"]["completion_tokens"] > 0
    texts = {result["seat"]: result["content"] for result in outcome["results"]}
    assert texts["agent-dev-004"] == f"Done: {DONE}"


async def test_a_foreign_agent_finds_no_key_no_network_and_no_private_file(tmp_path: Path) -> None:
    def propose(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        del headers
        port = int(model.base_url.split(":")[-1].split("/")[0])
        addresses = [["127.0.0.1", port], ["10.255.255.1", 80], ["1.1.1.1", 53]]
        paths = [str(command.data_dir / "guard.key"), "/proc/1/environ", "/etc/shadow"]
        probe = {"tool": "probe", "args": {"addresses": addresses, "paths": paths}}
        fix = {"tool": "ask", "args": {"path": "src/utils.py", "content": SOLVED}}
        return DONE if turns_of(body) else json.dumps({"actions": [probe, fix]})

    async with model_of(answer_turns_with(propose)) as model:
        command, repo = await prepare(tmp_path, model)
        code, outcome = await deliberate(command, repo, "--agents", "1", "--model", "crew")
        assert all(call.headers["Authorization"] == f"Bearer {KEY}" for call in model.requests)
    assert code == 0, outcome
    diff = outcome["results"][0]["diff"]
    assert "CREW=port " in diff
    assert "OPENAI_API_KEY=none" in diff
    assert KEY not in diff
    assert "REACHED" not in diff
    assert "READ " not in diff
    assert "MOOTHALL_" not in diff


async def test_calls_before_a_kill_are_not_repeated(tmp_path: Path) -> None:
    reached = asyncio.Event()
    turn_counts: list[int] = []

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        del headers
        turn_counts.append(turns_of(body))
        if turns_of(body) == 2 and not reached.is_set():
            reached.set()
            await asyncio.sleep(3600)
        parts = {0: "\n\ndef hello_world():\n", 1: '    return "Hello, World!"\n'}
        text = parts.get(turns_of(body))
        return turn("files.append", path="src/utils.py", content=text) if text else DONE

    async with model_of(answer) as model:
        command, repo = await prepare(tmp_path, model)
        args = ("--agents", "1", "--model", "crew", "--task-id", "task-resumed")
        process = await command.start("deliberate", TASK, "--repo", str(repo), "--json", *args)
        async with asyncio.timeout(120):
            await reached.wait()
            # The record of a call is on its way for some milliseconds, longer on a busy machine.
            while (await command("log", "tail", "--task", "task-resumed")).out.count(
                "model.called"
            ) < 2:
                await asyncio.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        turn_counts.clear()
        code, outcome = await deliberate(command, repo, *args)
    assert code == 0, outcome
    assert turn_counts == [2]
    assert outcome["seats"][0]["usage"]["calls"] == 3


async def test_a_missing_program_is_reported_with_the_searched_setting(
    tmp_path: Path,
) -> None:
    async with model_of(answer_turns_with(lambda *_: FIX)) as model:
        command, repo = await prepare(tmp_path, model)
        code, outcome = await deliberate(command, repo, "--agents", "1", "--model", "lost")
    assert code == 2, outcome
    message = outcome["seats"][0]["error_message"]
    assert "no-such-agent cannot be run: No such file or directory" in message
    assert "sandbox.toolchains" in message
