"""`moothall mcp` with the official client: a council, a question, status and reasons."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Request, RequestParams, Result

from command import Command, answer_turns_with, by_task, git
from moothall.cli.demo import make_sample_repository
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
    async with scripted_model(answer_turns_with(answer)) as model:
        command = Command(data_dir, model.base_url)
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "moothall", "mcp"], env=command.environment()
        )
        async with Client(server, read_timeout_seconds=240) as client:
            yield client


def structured_content(tool_result: Any) -> Any:
    assert not tool_result.is_error, tool_result.content
    return (
        tool_result.structured_content
        if isinstance(tool_result.structured_content, dict)
        else json.loads(tool_result.content[0].text)
    )


async def test_an_assistant_starts_a_council_and_asks_for_the_reasons(tmp_path: Path) -> None:
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
        outcome = structured_content(
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
        result = structured_content(await client.call_tool("result", {"task_id": "from-mcp"}))
        assert (result["winner_id"], result["branch"]) == (outcome["winner_id"], outcome["branch"])
        text = git(repo, "show", outcome["branch"] + ":src/utils.py").splitlines()
        line = next(number for number, row in enumerate(text, 1) if "hello_world" in row)
        place = {
            "file": "src/utils.py",
            "line": line,
            "repository": str(repo),
            "ref": outcome["branch"],
        }
        async with asyncio.timeout(60):  # the graph lags behind the answers
            while not (reasons := structured_content(await client.call_tool("why", place)))[
                "proposals"
            ]:
                await asyncio.sleep(0.5)
        assert reasons["line"]["commit"] == outcome["commit_sha"]
        assert reasons["proposals"][0]["task"]["task_id"] == "from-mcp"
        response = structured_content(await client.call_tool("ask", {"prompt": "What is 2 + 2?"}))
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


async def test_several_clients_use_the_http_server(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        assert (total, bool(message)) == (100, True)
        steps.append(progress)

    async with (
        scripted_model(answer_turns_with(answer)) as model,
        http_server(Command(tmp_path / "data", model.base_url)) as url,
    ):
        token = (tmp_path / "data" / "token").read_text(encoding="utf-8").strip()
        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=240
        ) as web:
            transport = streamable_http_client(url, http_client=web)
            async with Client(transport, read_timeout_seconds=240) as client:
                outcome = structured_content(
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
                result = structured_content(
                    await client.call_tool("result", {"task_id": "over-http"})
                )
            assert result["branch"] == outcome["branch"]
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
async def test_an_unsafe_address_is_refused(tmp_path: Path, address: str, message: str) -> None:
    result = await Command(tmp_path / "data", "http://127.0.0.1:9/v1")("mcp", "--http", address)
    assert result.code == 2
    assert message in result.err


async def test_another_address_requires_tls(tmp_path: Path) -> None:
    command = Command(tmp_path / "data", "http://127.0.0.1:9/v1")
    command.extra["MOOTHALL_GRPC__TOKEN"] = "a-token-of-the-operator"
    result = await command("mcp", "--http", "0.0.0.0:0")
    assert (result.code, "set web.tls_cert and web.tls_key" in result.err) == (2, True)


async def test_a_disconnected_client_cancels_its_deliberation(tmp_path: Path) -> None:
    model_called = asyncio.Event()

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        del body, headers
        model_called.set()
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
                await model_called.wait()
        pending.cancel()
        listing = await command("list", "--json")
        (task,) = json.loads(listing.out)["tasks"]
        assert (task["task_id"], task["status"]) == ("left-alone", "CANCELLED")


class TaskParams(RequestParams):
    task_id: str


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


class Task(Result):
    result_type: str
    task_id: str = ""
    status: str = ""
    status_message: str = ""
    created_at: str = ""
    last_updated_at: str = ""
    ttl_ms: int | None = 0
    poll_interval_ms: int = 0
    result: dict[str, Any] | None = None


class CreatedTask(Task):
    result_type: Literal["task"] = "task"


class Tasks(ClientExtension):
    """The tasks extension in a client, which polls each task to its end."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.seen: list[Task] = []
        self.created = asyncio.Event()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    async def _resolve(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        self.seen.append(created)
        self.created.set()
        task = await ask_task(context.session, "tasks/get", created.task_id)
        while task.status == "working":
            await asyncio.sleep(created.poll_interval_ms / 5000)
            task = await ask_task(context.session, "tasks/get", created.task_id)
        self.seen.append(task)
        return CallToolResult.model_validate(task.result or {"content": [], "isError": True})


async def ask_task(session: Any, method: str, task_id: str) -> Task:
    request = TaskRequest(method=method, params=TaskParams(task_id=task_id))
    task: Task = await session.send_request(request, Task)
    return task


async def test_a_deliberation_is_an_mcp_task(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    async with (
        scripted_model(answer_turns_with(answer)) as model,
        http_server(Command(tmp_path / "data", model.base_url)) as url,
    ):
        token = (tmp_path / "data" / "token").read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=240) as web:
            transport, tasks = streamable_http_client(url, http_client=web), Tasks()
            async with Client(transport, read_timeout_seconds=240, extensions=[tasks]) as client:
                arguments = {"task": TASK, "repository": str(repo), "task_id": "as-task"}
                outcome = structured_content(await client.call_tool("deliberate", arguments))
                assert (outcome["status"], outcome["proven"]) == ("COMPLETED", True)
                created, *_, last = tasks.seen
                assert (created.task_id, created.status, created.ttl_ms) == (
                    "as-task",
                    "working",
                    None,
                )
                assert (last.status, last.result_type) == ("completed", "complete")
                assert created.created_at == last.created_at < last.last_updated_at
                # The same call again is the same task, which has ended.
                repeated = structured_content(await client.call_tool("deliberate", arguments))
                assert repeated["branch"] == outcome["branch"]
                refused = await client.call_tool("deliberate", {"task": " ", "role": "dev"})
                assert (refused.is_error, "task is empty" in str(refused.content)) == (True, True)
                with pytest.raises(MCPError, match="nobodys"):
                    await ask_task(client.session, "tasks/get", "nobodys")
                assert (await ask_task(client.session, "tasks/update", "as-task")).status == ""
            transport = streamable_http_client(url, http_client=web)
            async with Client(transport, read_timeout_seconds=240) as client:
                with pytest.raises(MCPError, match="did not declare"):
                    await ask_task(client.session, "tasks/get", "as-task")


async def test_an_mcp_task_is_cancelled(tmp_path: Path) -> None:
    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        del body, headers
        return Fault("silent", delay=120)

    tasks = Tasks()
    async with scripted_model(slowly) as model:
        command = Command(tmp_path / "data", model.base_url)
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "moothall", "mcp"], env=command.environment()
        )
        async with Client(server, read_timeout_seconds=240, extensions=[tasks]) as client:
            pending = asyncio.ensure_future(
                client.call_tool("deliberate", {"task": "Think of a name", "task_id": "to-cancel"})
            )
            async with asyncio.timeout(120):
                await tasks.created.wait()
                await ask_task(client.session, "tasks/cancel", "to-cancel")
                await pending
    assert tasks.seen[-1].status == "cancelled"
