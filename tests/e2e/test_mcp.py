"""`moothall mcp` with the official client: a council, a question, status and reasons."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

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
