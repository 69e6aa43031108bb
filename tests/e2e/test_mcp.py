"""`moothall mcp` with the official client: a council, a question, status and reasons."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from command import Command, by_task, git, scripted
from moothall.repositories.sample import make_sample_repository
from moothall.testing.model import Fault, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    return (
        '{"thought": "", "finish": "Four."}'
        if "2 + 2" in str(body["messages"])
        else by_task(body, headers)
    )


@asynccontextmanager
async def assistant(data_dir: Path) -> AsyncIterator[Client]:
    """Yield the official client of a new `moothall mcp` process."""
    async with scripted_model(scripted(answer)) as model:
        command = Command(data_dir, model.base_url)
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "moothall", "mcp"], env=command.environment()
        )
        async with Client(server, read_timeout_seconds=240) as client:
            yield client


def structured(tool_result: Any) -> Any:
    assert not tool_result.is_error, tool_result.content
    return (
        tool_result.structured_content
        if isinstance(tool_result.structured_content, dict)
        else json.loads(tool_result.content[0].text)
    )


async def test_an_assistant_lets_a_council_work_and_asks_why(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        assert (total, bool(message)) == (100, True)
        steps.append(progress)

    async with assistant(tmp_path / "data") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"deliberate", "ask", "result", "why", "context"}
        assert "call" not in tools["deliberate"].input_schema["properties"]
        outcome = structured(
            await client.call_tool(
                "deliberate",
                {"task": TASK, "repository": str(repo), "task_id": "from-mcp"},
                progress_callback=step,
            )
        )
        assert (outcome["status"], outcome["proven"]) == ("COMPLETED", True)
        assert "hello_world" in git(repo, "show", outcome["branch"] + ":src/utils.py")
        assert steps == sorted(steps)
        assert steps[-1] == 100
        again = structured(await client.call_tool("result", {"task_id": "from-mcp"}))
        assert (again["winner_id"], again["branch"]) == (outcome["winner_id"], outcome["branch"])
        text = git(repo, "show", outcome["branch"] + ":src/utils.py").splitlines()
        line = next(number for number, row in enumerate(text, 1) if "hello_world" in row)
        place = {
            "file": "src/utils.py",
            "line": line,
            "repository": str(repo),
            "ref": outcome["branch"],
        }
        async with asyncio.timeout(60):  # the graph lags behind the answers
            while not (reasons := structured(await client.call_tool("why", place)))["proposals"]:
                await asyncio.sleep(0.5)
        assert reasons["line"]["commit"] == outcome["commit_sha"]
        assert reasons["proposals"][0]["task"]["task_id"] == "from-mcp"
        response = structured(await client.call_tool("ask", {"prompt": "What is 2 + 2?"}))
        assert response["results"][0]["content"] == "Four."
        missing = await client.call_tool("result", {"task_id": "nobodys"})
        assert (missing.is_error, "nobodys" in str(missing.content)) == (True, True)
        context = await client.call_tool("context", {"task_id": "from-mcp"})
        assert not context.is_error, context.content


@asynccontextmanager
async def http_server(command: Command, *args: str) -> AsyncIterator[str]:
    """Yield the URL of a new `moothall mcp --http` process."""
    process = await command.start("mcp", "--http", "127.0.0.1:0", *args)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            line = ""
            while not line.startswith("serving MCP on "):
                line = (await process.stderr.readline()).decode()
                assert line, "the server ended"
        assert str(command.data_dir / "token") in line
        yield line.split()[3].rstrip(";")
    finally:
        process.terminate()
        _, err = await process.communicate()
    assert process.returncode == 130, err.decode()


async def test_several_clients_over_http(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        assert (total, bool(message)) == (100, True)
        steps.append(progress)

    async with (
        scripted_model(scripted(answer)) as model,
        http_server(Command(tmp_path / "data", model.base_url)) as url,
    ):
        token = (tmp_path / "data" / "token").read_text(encoding="utf-8").strip()
        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=240
        ) as web:
            transport = streamable_http_client(url, http_client=web)
            async with Client(transport, read_timeout_seconds=240) as client:
                outcome = structured(
                    await client.call_tool(
                        "deliberate",
                        {"task": TASK, "repository": str(repo), "task_id": "over-http"},
                        progress_callback=step,
                    )
                )
            assert (outcome["status"], outcome["proven"]) == ("COMPLETED", True)
            assert (steps, steps[-1]) == (sorted(steps), 100)
            # The next client finds the work of the one before.
            transport = streamable_http_client(url, http_client=web)
            async with Client(transport, read_timeout_seconds=240) as client:
                again = structured(await client.call_tool("result", {"task_id": "over-http"}))
            assert again["branch"] == outcome["branch"]
            headers = {"Accept": "application/json, text/event-stream"}
            for extra, status in (
                ({"Authorization": "Bearer wrong-token"}, 401),
                ({"Host": "rebound.example"}, 403),
                ({"Origin": "http://page.example"}, 403),
            ):
                refused = await web.post(url, json={}, headers=headers | extra)
                assert refused.status_code == status, refused.text


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("8090", "is not HOST:PORT; write 127.0.0.1:8090"),
        ("127.0.0.1:99999", "is not HOST:PORT"),
        ("0.0.0.0:0", "is not a loopback address: set grpc.token"),
    ],
)
async def test_an_address_that_is_not_safe_is_refused(
    tmp_path: Path, address: str, message: str
) -> None:
    ran = await Command(tmp_path / "data", "http://127.0.0.1:9/v1")("mcp", "--http", address)
    assert ran.code == 2
    assert message in ran.err


async def test_another_address_needs_tls(tmp_path: Path) -> None:
    command = Command(tmp_path / "data", "http://127.0.0.1:9/v1")
    command.extra["MOOTHALL_GRPC__TOKEN"] = "a-token-of-the-operator"
    ran = await command("mcp", "--http", "0.0.0.0:0")
    assert (ran.code, "set web.tls_cert and web.tls_key" in ran.err) == (2, True)


async def test_a_client_that_goes_cancels_what_it_began(tmp_path: Path) -> None:
    received = asyncio.Event()

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        del body, headers
        received.set()
        return Fault("silent", delay=120)

    async with scripted_model(slowly) as model:
        command = Command(tmp_path / "data", model.base_url)
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "moothall", "mcp"], env=command.environment()
        )
        async with Client(server, read_timeout_seconds=240) as client:
            pending = asyncio.ensure_future(
                client.call_tool("deliberate", {"task": "Think of a name", "task_id": "left-alone"})
            )
            async with asyncio.timeout(60):
                await received.wait()
        pending.cancel()
        shown = await command("list", "--json")
        (task,) = json.loads(shown.out)["tasks"]
        assert (task["task_id"], task["status"]) == ("left-alone", "CANCELLED")
