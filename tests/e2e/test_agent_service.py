"""The agent service of a real server: tools in real sandboxes, a scripted model, and a client that
knows only the protos.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from aiohttp import web
from google.protobuf import json_format
from served import ALICE, Served, make_command, run_server

from command import answer_turns_with, by_task, git, turn
from moothall.cli.demo import make_sample_repository
from moothall.forge.watch import is_signed
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from support.agents import read_all
from support.processes import command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NAP = "sleep 98765"
SLOW = f"import os\n\n\ndef test_slow():\n    os.system('{NAP}')\n"
TASK = "Add hello_world() function to src/utils.py"


class Caller:
    """A stub whose calls carry alice's token.

    Attributes:
        deliveries: bodies and signatures of the webhooks that the server sent.
        model: the model server behind it.
    """

    def __init__(
        self, app: Served, deliveries: list[tuple[bytes, str]], model: ScriptedModel
    ) -> None:
        self._stub: Any = pb_grpc.AgentServiceStub(app.channel)
        self.deliveries = deliveries
        self.model = model
        self.pid = app.pid

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda request: method(
            request, metadata=(("authorization", f"Bearer {ALICE}"),), timeout=180
        )


def task_request(
    query: str = "", context: Mapping[str, Any] | None = None, **fields: Any
) -> pb.ExecuteTaskRequest:
    request = pb.ExecuteTaskRequest(query=query, **fields)
    request.context.update(context or {})
    return request


async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    prompt = str(body["messages"])
    if "WAIT" in prompt:
        await asyncio.Event().wait()
    if "NOTES" in prompt:
        has_acted = any(message["role"] == "assistant" for message in body["messages"])
        write_notes = turn("files.write", path="notes.md", content="to be done\n")
        return '{"thought": "", "finish": "It is written."}' if has_acted else write_notes
    if "SLEEP" in prompt:
        return turn("files.write", path="tests/test_slow.py", content=SLOW)
    if "SLOWLY" in prompt:
        return Fault("silent", '{"thought": "", "finish": "It is four, bec')
    return '{"thought": "", "finish": "Four."}' if "2 + 2" in prompt else by_task(body, headers)


@asynccontextmanager
async def hook(deliveries: list[tuple[bytes, str]]) -> AsyncIterator[str]:
    """Receive webhooks; yield the URL."""

    async def hear(request: web.Request) -> web.Response:
        deliveries.append((await request.read(), request.headers["X-Moothall-Signature-256"]))
        return web.Response(status=204)

    site = web.Application()
    site.router.add_post("/", hear)
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    folder = tmp_path_factory.mktemp("agents")

    async def answer_slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        return await answer(body, headers)

    deliveries: list[tuple[bytes, str]] = []
    async with scripted_model(answer_turns_with(answer_slowly)) as model, hook(deliveries) as url:
        command = make_command(folder, model.base_url)
        command.extra["MOOTHALL_TOOLS__PARALLELISM"] = "3"
        command.extra |= {
            "MOOTHALL_WEBHOOK__URL": url,
            "MOOTHALL_WEBHOOK__SECRET": "of these tests",
        }
        command.extra["MOOTHALL_WORKSPACE__ALLOWED_ROOTS"] = f'["{folder}"]'
        async with run_server(command) as app:
            yield Caller(app, deliveries, model)


async def test_files_of_a_session_persist_between_calls_without_a_model_call(
    agent: Caller,
) -> None:
    meta = common.TaskMetadata(session_id="session 7")
    write = {
        "tool_calls": [
            {"tool": "files.write", "parameters": {"path": f"{n}.py", "content": f"x = {n}\n"}}
            for n in range(4)
        ]
    }
    write_response = await agent.ExecuteTask(task_request(context=write, metadata=meta))
    assert (write_response.status, write_response.metrics.agents_used) == (
        common.STATUS_CODE_OK,
        0,
    ), write_response.error_message
    read = {"tool_parameters": {"tool": "files.read", "path": "3.py"}}
    response = await agent.ExecuteTask(task_request(context=read, metadata=meta))
    assert json_format.MessageToDict(response.tool_results[0].output)["content"] == "x = 3\n"
    without_session = await agent.ExecuteTask(task_request(context=read))
    assert (without_session.status, without_session.final_state) == (
        common.STATUS_CODE_ERROR,
        pb.AGENT_STATE_FAILED,
    )
    shell = {
        "tool_parameters": {"tool": "code.shell", "command": "cat *.py | wc -l; cat /etc/shadow"}
    }
    executed = await agent.ExecuteTask(task_request(context=shell, metadata=meta))
    assert executed.status == common.STATUS_CODE_OK, executed.error_message
    assert json_format.MessageToDict(executed.tool_results[0].output)["output"].split()[0] == "4", (
        executed.tool_results
    )


async def test_an_agent_answers_a_question_in_unary_and_streaming_mode(agent: Caller) -> None:
    response = await agent.ExecuteTask(task_request("What is 2 + 2?"))
    assert (response.status, response.result, response.metrics.agents_used) == (
        common.STATUS_CODE_OK,
        "Four.",
        1,
    )
    assert response.metrics.token_usage.total_tokens > 0
    updates = [update async for update in agent.StreamExecuteTask(task_request("What is 2 + 2?"))]
    states = [update.state for update in updates]
    assert (states[0], states[-1]) == (pb.AGENT_STATE_PLANNING, pb.AGENT_STATE_COMPLETED)
    assert "".join(update.delta for update in updates) == updates[-1].message == "Four."
    progress = [update.progress for update in updates]
    assert progress == sorted(progress)
    async with asyncio.timeout(20):
        while (
            signed_bodies := {
                json.loads(body)["task_id"]: (body, signed) for body, signed in agent.deliveries
            }
        ).keys() < {
            response.task_id,
            updates[-1].task_id,
        }:
            await asyncio.sleep(0.05)
    assert all(is_signed("of these tests", body, signed) for body, signed in signed_bodies.values())


async def test_an_agent_without_a_repository_uses_tools_and_reports_each(agent: Caller) -> None:
    query = task_request("Write the NOTES down", available_tools=["file_write", "file_read"])
    response = await agent.ExecuteTask(query)
    assert (response.status, response.final_state) == (
        common.STATUS_CODE_OK,
        pb.AGENT_STATE_COMPLETED,
    ), response.error_message
    assert "+to be done" in json_format.MessageToDict(response.metadata)["diff"]
    updates = await read_all(agent.StreamExecuteTask(query))
    assert updates[-1].state == pb.AGENT_STATE_COMPLETED
    streamed = [update.tool_call for update in updates if update.HasField("tool_call")]
    results = [update.tool_result for update in updates if update.HasField("tool_result")]
    for calls, tool_results in (
        (response.tool_calls, response.tool_results),
        (streamed, results[:-1]),
    ):
        assert [call.name for call in calls] == ["files.write"]
        assert json_format.MessageToDict(calls[0].parameters) == {
            "path": "notes.md",
            "content": "to be done\n",
        }
        assert [(result.tool_id, result.status) for result in tool_results] == [
            (calls[0].tool_id, common.STATUS_CODE_OK)
        ]
        assert json_format.MessageToDict(tool_results[0].output)["path"] == "notes.md"
    assert results[-1].tool_id == "usage_metrics"


async def test_the_text_is_streamed_while_the_model_writes_it(agent: Caller) -> None:
    stream = agent.StreamExecuteTask(task_request("What is 2 + 2, SLOWLY?"))
    async with asyncio.timeout(60):
        async for update in stream:
            if update.delta:
                break
    assert (update.delta, update.state) == ("It is four,", pb.AGENT_STATE_EXECUTING), (
        "the model has not finished its reply, and never will"
    )
    stream.cancel()


async def test_a_council_fixes_a_repository(
    agent: Caller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repo = tmp_path_factory.getbasetemp() / "agents0" / "repo"
    await make_sample_repository(repo)
    response = await agent.ExecuteTask(
        task_request(TASK, {"repository": str(repo)}, mode=common.EXECUTION_MODE_COMPLEX)
    )
    assert (response.status, response.metrics.agents_used) == (common.STATUS_CODE_OK, 3), (
        response.error_message
    )
    about = json_format.MessageToDict(response.metadata)
    assert about["proven"] is True
    assert "hello_world" in git(repo, "show", about["branch"] + ":src/utils.py")


async def test_a_task_over_its_callers_token_budget_fails_with_that_status(agent: Caller) -> None:
    response = await agent.ExecuteTask(
        task_request("What is 2 + 2?", metadata=common.TaskMetadata(token_budget=1))
    )
    assert (response.status, response.final_state) == (
        common.STATUS_CODE_BUDGET_EXCEEDED,
        pb.AGENT_STATE_FAILED,
    ), response
    assert "BUDGET_EXCEEDED" in response.error_message


@pytest.mark.parametrize(
    "mode",
    [common.EXECUTION_MODE_SIMPLE, common.EXECUTION_MODE_STANDARD, common.EXECUTION_MODE_COMPLEX],
)
async def test_a_callers_timeout_ends_unary_and_streaming_calls_alike(
    agent: Caller, mode: common.ExecutionMode.ValueType
) -> None:
    query, began = (
        task_request("WAIT for me", mode=mode, config=pb.AgentConfig(timeout_seconds=4)),
        time.monotonic(),
    )
    calls = (agent.ExecuteTask(query), read_all(agent.StreamExecuteTask(query)))
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, grpc.aio.AioRpcError)
        assert (error.code(), str(error.details()).partition(":")[0]) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "timeout",
        )
    assert time.monotonic() - began >= query.config.timeout_seconds


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):  # preparing a repository takes long on a busy machine
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_cancelled_stream_disconnects_from_the_model(agent: Caller) -> None:
    """The model never answers; only the end of the call stops its request."""
    await until(lambda: not agent.model.in_flight)
    stream = agent.StreamExecuteTask(task_request("WAIT for it"))
    await until(lambda: agent.model.in_flight == 1)
    stream.cancel()
    await until(lambda: not agent.model.in_flight)
    async with asyncio.timeout(60):
        while (await agent.HealthCheck(pb.HealthCheckRequest())).active_tasks:
            await asyncio.sleep(0.02)


async def test_a_cancelled_stream_ends_its_running_tools(
    agent: Caller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tool calls with and without an agent; each would sleep for a day."""
    repo = tmp_path_factory.getbasetemp() / "agents0" / "slow"
    await make_sample_repository(repo)
    shell = {"tool_parameters": {"tool": "code.shell", "command": NAP}}
    for request in (
        task_request("SLEEP on it", {"repository": str(repo)}),
        task_request(context=shell),
    ):
        stream = agent.StreamExecuteTask(request)
        await until(lambda: has_sleeping_child(agent.pid))
        stream.cancel()
        await until(lambda: not has_sleeping_child(agent.pid))


def has_sleeping_child(pid: int) -> bool:
    """True if a process below this one sleeps."""
    return any(command_line(process) == NAP for process in descendants(pid))


async def test_advertised_capabilities_match_the_discovered_tools(agent: Caller) -> None:
    capabilities = await agent.GetCapabilities(pb.GetCapabilitiesRequest())
    tools = (await agent.DiscoverTools(pb.DiscoverToolsRequest())).tools
    assert [tool.id for tool in tools] == list(capabilities.supported_tools)
    assert capabilities.max_memory_mb > 0
    health = await agent.HealthCheck(pb.HealthCheckRequest())
    assert (health.healthy, health.uptime_seconds >= 0) == (True, True), health.message
    capability = (
        await agent.GetToolCapability(pb.GetToolCapabilityRequest(tool_id="code.shell"))
    ).tool
    assert (capability.id, capability.is_dangerous, capability.rate_limit.requests_per_minute) == (
        "code.shell",
        True,
        60,
    )
    assert capability in tools
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await agent.GetToolCapability(pb.GetToolCapabilityRequest(tool_id="no.tool"))
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
