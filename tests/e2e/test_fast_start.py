"""Start of a command: its hosts run beside it, and errors are reported before anything slow
begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import Command, answer_turns_with, by_task, git
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from support.processes import command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def test_a_command_hosts_its_own_seats_without_importing_ray(
    model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    command = Command(tmp_path / "data", model.base_url, {"PYTHONPROFILEIMPORTTIME": "1"})
    result = await command("deliberate", "--repo", str(repo), "--json", TASK)
    assert result.code == 0, result.err
    assert result.document["proven"] is True
    assert git(repo, "branch", "--list", result.document["branch"])
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", result.err, re.MULTILINE))
    assert "moothall.workers.subprocesses" in imported
    assert not {name for name in imported if name.partition(".")[0] == "ray"}
    assert (tmp_path / "data" / "logs").is_dir()


async def test_logs_of_a_host_beside_a_command_stay_in_its_file(
    model: ScriptedModel, tmp_path: Path
) -> None:
    command = Command(tmp_path / "data", model.base_url)
    # Its reply mode is probed, which a host logs.
    async with scripted_model(answer_turns_with(by_task)) as other_model:
        command.model_url = other_model.base_url
        result = await command("deliberate", "--text", "--agents", "1", "--json", "Write a HAIKU")
    assert result.code == 3, result.err
    assert result.err == ""
    assert "reply mode detected" in (tmp_path / "data" / "logs" / "host-1.log").read_text(
        encoding="utf-8"
    )


async def test_a_second_command_uses_the_server_of_the_first(
    model: ScriptedModel, tmp_path: Path
) -> None:
    command = Command(tmp_path / "data", model.base_url)
    first = await command.start(
        "deliberate", "-v", "--text", "--agents", "1", "--timeout", "60", "HANG and write a HAIKU"
    )
    assert first.stderr is not None
    async with asyncio.timeout(60):
        while b"takes its seat" not in await first.stderr.readline():
            pass
    second = await command("deliberate", "--text", "--agents", "1", "--json", "Write a HAIKU")
    assert second.code == 3, second.err
    assert first.returncode is None
    assert ["nats-server" in command_line(child) for child in descendants(first.pid)].count(
        True
    ) == 1
    first.terminate()
    _, stderr = await asyncio.wait_for(first.communicate(), 60)
    assert first.returncode == 130, stderr.decode()


async def test_a_command_with_closed_output_serves_other_commands_until_they_end(
    tmp_path: Path,
) -> None:
    second_called, first_waits = asyncio.Event(), asyncio.Event()

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        if "SECOND" in prompt:
            second_called.set()
        await (first_waits if "SECOND" in prompt else second_called).wait()
        return by_task(body, headers)

    arguments = ("deliberate", "--text", "--agents", "1")
    async with scripted_model(answer) as model:
        command = Command(tmp_path / "data", model.base_url)
        reader, writer = os.pipe()
        first = await command.start(*arguments, "-v", "Write a HAIKU, the FIRST", stdout=writer)
        os.close(writer)
        os.close(reader)
        assert first.stderr is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(120):
                while "takes its seat" not in (line := (await first.stderr.readline()).decode()):
                    assert line, lines
                    lines.append(line)
                second = asyncio.create_task(
                    command(*arguments, "--json", "Write a HAIKU, the SECOND")
                )
                while line := (await first.stderr.readline()).decode():
                    lines.append(line)
                    if "other deliberation(s) are under way here" in line:
                        break
                first_waits.set()
                _, rest = await first.communicate()
                result = await second
        finally:  # nothing waits after the first has ended without a message
            second_called.set()
            first_waits.set()
            if first.returncode is None:
                first.kill()
    assert result.code == 3, (result.err, lines, rest)
    assert first.returncode not in {0, None}


@pytest.mark.parametrize(
    "args", [("deliberate", "--text", "--agents", "1", "Write a HAIKU"), ("serve", "--port", "0")]
)
async def test_an_unusable_model_ends_the_start_with_exit_code_2(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    async with scripted_model(answer_turns_with(by_task), api_key="right") as locked:
        root = locked.base_url.removesuffix("/v1")
        key = {"MOOTHALL_LLM__API_KEY": "right"}
        unreachable: tuple[tuple[str, dict[str, str], str], ...] = (
            ("http://127.0.0.1:9/v1", {}, "connection refused at 127.0.0.1:9"),
            ("http://no.such.name.invalid/v1", {}, "cannot be resolved"),
        )
        for url, extra, message in (
            # It continues and reports this: tests/tools/test_apis.py.
            *(unreachable if args[0] != "serve" else ()),
            (
                locked.base_url,
                {},
                "HTTP 401: wrong API key; set the key with MOOTHALL_LLM__API_KEY",
            ),
            (root, key, f"set MOOTHALL_LLM__BASE_URL={root}/v1"),
            (locked.base_url, key | {"MOOTHALL_LLM__MODEL": "no-such"}, "it has: scripted"),
        ):
            result = await Command(tmp_path / "data", url, extra)(*args)
            assert result.code == 2, (url, result.err)
            assert message in result.err
            assert "Traceback" not in result.err
            assert len(result.err.strip().splitlines()) == 1, result.err
    assert not (tmp_path / "data" / "bus").exists()  # nothing was started for it


async def test_a_starting_model_server_is_waited_for_if_configured(
    tmp_path: Path,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    command = Command(
        tmp_path / "data", f"http://127.0.0.1:{port}/v1", {"MOOTHALL_LLM__WAIT_SECONDS": "120"}
    )
    process = await command.start("deliberate", "--text", "--agents", "1", "Write a HAIKU")
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b"waiting up to 120 s for the model server" not in (
            line := await process.stderr.readline()
        ):
            assert line, "it ended"
    async with scripted_model(answer_turns_with(by_task), port=port):
        _, stderr = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 3, stderr.decode()


async def test_an_occupied_port_ends_serve_before_anything_is_started(
    model: ScriptedModel, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = str(listener.getsockname()[1])
        for setting, name in (
            ("GRPC", "grpc.port"),
            ("WEB", "web.port"),
            ("METRICS", "metrics.port"),
        ):
            extra = {"MOOTHALL_GRPC__PORT": "0", f"MOOTHALL_{setting}__PORT": port}
            result = await Command(tmp_path / "data", model.base_url, extra)("serve")
            assert result.code == 2, result.err
            assert (
                f"127.0.0.1:{port} cannot be listened on: address already in use; choose another"
                in result.err
            )
            assert name in result.err
    assert not (tmp_path / "data" / "bus").exists()


async def test_a_command_killed_with_sigkill_resumes_where_it_was(
    repo: Path, tmp_path: Path
) -> None:
    """No call whose answer is on the log is repeated."""
    slow = {"wait": True}

    async def answer(body: dict[str, object], headers: dict[str, str]) -> object:
        if slow["wait"] and "/agent-dev-002/propose/" in headers.get("X-Request-Id", ""):
            await asyncio.Event().wait()
        return by_task(body, headers)

    async with scripted_model(answer_turns_with(answer)) as server:  # type: ignore[arg-type]  # a coroutine is a valid answer
        command = Command(tmp_path / "data", server.base_url)
        args = ("deliberate", "--repo", str(repo), "--agents", "2", "--task-id", "cut-off", TASK)
        process = await command.start(*args, "-v")
        assert process.stderr is not None
        async with asyncio.timeout(120):
            while b"agent-dev-001   turn 1" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        process.kill()
        await process.wait()
        slow["wait"] = False
        calls_before = {
            request.call_id for request in server.requests if "agent-dev-002" not in request.call_id
        }
        result = await command(*args, "--json")
        assert result.code == 0, result.err
        assert json.loads(result.out)["proven"] is True
        all_calls = [request.call_id for request in server.requests]
        assert [name for name in calls_before if all_calls.count(name) > 1] == []
