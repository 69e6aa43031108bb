"""Kills and interrupts: nothing is left behind and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import make_command, run_server

from command import Command, answer_turns_with, by_task, git, mounts_below
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from support.processes import all_gone, command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def read_until(stream: asyncio.StreamReader, word: str, seconds: float = 120) -> str:
    """Read lines up to the first one that contains a word."""
    output = ""
    async with asyncio.timeout(seconds):
        while word not in output:
            line = (await stream.readline()).decode()
            assert line, f"ended without {word!r}: {output}"
            output += line
    return output


@pytest.fixture(params=["process", "ray", "subprocess"])
def host_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return settings that put the command's hosts where the parameter says."""
    return {"MOOTHALL_RAY__MODE": request.param}


async def test_ctrl_c_leaves_nothing_running(
    model: ScriptedModel, repo: Path, tmp_path: Path, host_settings: dict[str, str]
) -> None:
    command = Command(tmp_path / "data", model.base_url, host_settings)
    process = await command.start("deliberate", "-v", "--repo", str(repo), f"HANG {TASK}")
    assert process.stderr is not None
    await read_until(process.stderr, "agent-dev-003")
    await asyncio.sleep(0.5)
    children = descendants(process.pid)
    assert len(children) > 5  # bus and sandboxes; Ray's processes or the host's
    os.kill(process.pid, signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, err.decode()
    assert await all_gone(children) == []
    assert mounts_below(tmp_path) == []
    assert git(repo, "branch", "--list", "moothall/*") == ""
    assert git(repo, "status", "--porcelain") == ""
    assert "Traceback" not in err.decode()


async def test_sigterm_ends_as_cleanly_as_ctrl_c(
    model: ScriptedModel, repo: Path, tmp_path: Path, host_settings: dict[str, str]
) -> None:
    command = Command(tmp_path / "data", model.base_url, host_settings)
    process = await command.start("deliberate", "-v", "--repo", str(repo), f"HANG {TASK}")
    assert process.stderr is not None
    await read_until(process.stderr, "agent-dev-003")
    children = descendants(process.pid)
    os.kill(process.pid, signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, err.decode()
    last = (out + err).decode().strip().splitlines()
    assert not [
        line for line in last if line.startswith(("***", "PC:", "    @", "[failure_signal_handler"))
    ], last
    assert "SIGTERM received" not in "\n".join(last)
    assert await all_gone(children) == []


async def test_children_of_a_killed_command_end_and_the_next_run_finishes_the_work(
    model: ScriptedModel, repo: Path, tmp_path: Path, host_settings: dict[str, str]
) -> None:
    command = Command(tmp_path / "data", model.base_url, host_settings)
    hanging = f"HANG {TASK}"
    args = ("deliberate", "--repo", str(repo), "--task-id", "killed", "--json")
    process = await command.start(*args[:-1], "-v", hanging)
    assert process.stderr is not None
    await read_until(process.stderr, "agent-dev-003")
    children = descendants(process.pid)
    process.kill()
    await process.wait()
    # Two of Ray's agents notice their parent's end only after about a minute.
    assert await all_gone(children, 150) == []
    assert mounts_below(tmp_path) == []
    # The same model replies now: the recorded request is resumed and decided.
    async with scripted_model(answer_turns_with(_answer_normally)) as cured:
        result = await Command(tmp_path / "data", cured.base_url, host_settings)(*args, hanging)
    assert result.code == 0, result.err
    assert result.document["task_id"] == "killed"
    assert git(repo, "branch", "--list", "moothall/killed")


async def test_processes_left_by_a_killed_server_are_ended_by_the_next(
    model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    """Its host is stopped and has sandboxes, and the process that would clean up its Ray is killed
    first.
    """
    command = make_command(tmp_path, model.base_url, hosts="ray")
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    await read_until(server.stderr, "serving gRPC on")
    client = await command.start("deliberate", "-v", "--repo", str(repo), f"HANG {TASK}")
    assert client.stderr is not None
    await read_until(client.stderr, "agent-dev-003")
    children = descendants(server.pid)
    hosts = [process for process in children if "ray::Host" in command_line(process)]
    assert hosts
    for process in children:
        if "reaper.py" in command_line(process):
            process.kill()
    for process in hosts:
        # A child of a host may not have called exec yet.
        if process.ppid() not in {host.pid for host in hosts}:
            process.suspend()
    server.kill()
    await asyncio.gather(server.wait(), client.communicate())
    async with run_server(command):
        not_of_ray = [
            process
            for process in children
            if "ray::" not in command_line(process) or "ray::Host" in command_line(process)
        ]
        assert await all_gone(not_of_ray, 10) == []
        assert await all_gone(children, 150) == []  # Ray's two agents, as above


def _answer_normally(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    return by_task(json.loads(json.dumps(body).replace("HANG", "")), headers)


@pytest.mark.parametrize(
    ("victim", "mode"),
    [
        ("nats-server", "ray"),
        ("ray::Host", "ray"),
        ("nats-server", "subprocess"),
        ("moothall.workers.subprocesses", "subprocess"),
    ],
)
async def test_a_process_killed_during_a_deliberation_does_not_change_the_outcome(
    victim: str, mode: str, slow_model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    command = Command(tmp_path / "data", slow_model.base_url, {"MOOTHALL_RAY__MODE": mode})
    process = await command.start("deliberate", "--repo", str(repo), "--json", TASK)
    async with asyncio.timeout(120):
        while not any("/propose/" in request.call_id for request in slow_model.requests):
            await asyncio.sleep(0.05)
    killed = [child for child in descendants(process.pid) if victim in command_line(child)]
    assert killed
    for child in killed:
        child.kill()
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    document = json.loads(out)
    assert document["proven"] is True
    assert len(document["results"]) == 3
    assert git(repo, "branch", "--list", document["branch"])


@pytest_asyncio.fixture(loop_scope="session")
async def slow_model() -> AsyncIterator[ScriptedModel]:
    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        await asyncio.sleep(2)
        return by_task(body, headers)

    async with scripted_model(answer_turns_with(slowly)) as server:
        yield server


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"),
    [
        (Fault("status", status=500), "MODEL_UNAVAILABLE", 2),
        (Fault("empty"), "MALFORMED_REPLIES", 1),  # the server works, and its model does not reply
        (Fault("cut", text='{"thou'), "MODEL_UNAVAILABLE", 2),
    ],
)
async def test_a_broken_model_is_reported_as_a_failure(
    fault: Fault, code: str, exit_code: int, tmp_path: Path
) -> None:
    async with scripted_model(lambda body, headers: fault) as server:
        command = Command(
            tmp_path / "data",
            server.base_url,
            {"MOOTHALL_LLM__RETRIES": "1"},
        )
        result = await command("deliberate", "--text", "--agents", "2", "--json", "Write a HAIKU")
    assert result.code == exit_code, result.err
    assert result.document["status"] == "FAILED"
    assert {seat["error_code"] for seat in result.document["seats"]} == {code}
