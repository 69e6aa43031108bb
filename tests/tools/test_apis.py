"""The APIs of one real `moothall serve`: HTTP, /health, /tasks and the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import psutil
import pytest
import pytest_asyncio
from served import ALICE, EVE, Served, make_command, run_server

from command import answer_turns_with, by_task, git
from moothall.cli.demo import make_sample_repository
from moothall.pb.kernel.v1 import kernel_pb2 as kernel
from moothall.pb.kernel.v1.kernel_pb2_grpc import AgentKernelStub
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.runner.v1 import runner_pb2 as runner_pb
from moothall.pb.runner.v1.runner_pb2_grpc import SecureRunnerStub
from moothall.testing.model import ScriptedModel, scripted_model
from support.processes import command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TASK = "Add hello_world() function to src/utils.py"
PARKS_DELETES = """package moothall.tools
import rego.v1
default decision := {"allow": true}
decision := {"allow": false, "reason": "ask first", "park": true} if input.tool == "files.delete"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ScriptedModel]:
    async with scripted_model(answer_turns_with(by_task)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("apis")
    await make_sample_repository(folder / "repo")
    (folder / "policies").mkdir()
    (folder / "policies" / "tools.rego").write_text(PARKS_DELETES, encoding="utf-8")
    command = make_command(folder, model.base_url)
    tokens = folder / "tokens.toml"
    tokens.write_text(
        tokens.read_text(encoding="utf-8").replace(
            'name = "alice"', 'name = "alice"\noperator = true'
        ),
        encoding="utf-8",
    )
    command.extra |= {
        "MOOTHALL_WEB__PORT": "0",
        "MOOTHALL_GUARD__POLICIES": str(folder / "policies"),
        "MOOTHALL_WORKSPACE__ALLOWED_ROOTS": f'["{folder}"]',
        "MOOTHALL_LLM__RETRIES": "1",
    }
    async with run_server(command) as server:
        yield server


class Web:
    """A client with alice's token, or a given one."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, token: str = ALICE
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._session.request(method, path, json=body, headers=headers) as response:
            return response.status, await response.json(
                content_type=None
            ) if response.content_length else None


@pytest_asyncio.fixture(loop_scope="module")
async def web(app: Served) -> AsyncIterator[Web]:
    async with aiohttp.ClientSession(
        f"http://{app.web}", timeout=aiohttp.ClientTimeout(total=120)
    ) as session:
        yield Web(session)


def repo_of(app: Served) -> Path:
    return app.command.data_dir.parent / "repo"


async def test_a_workspace_is_opened_used_and_closed_and_a_parked_request_runs_once(
    app: Served, web: Web
) -> None:
    body = {"repository": {"url": str(repo_of(app))}, "role": "DEV"}
    assert (await web("POST", "/v1/workspaces", body, token=""))[0] == 401
    assert (await web("POST", "/v1/workspaces", body, token="x" * 20))[0] == 401
    status, workspace = await web("POST", "/v1/workspaces", body)
    assert status == 201, workspace

    async def call(
        tool: str, request_id: str, token: str = ALICE, **arguments: Any
    ) -> tuple[int, Mapping[str, Any]]:
        named = {
            "workspace_id": workspace["workspace_id"],
            "capability_token": workspace["capability_token"],
        }
        return await web(
            "POST",
            f"/v1/tools/{tool}",
            {**named, "request_id": request_id, "arguments": arguments},
            token,
        )

    status, read = await call("files.read", "r-1", path="src/utils.py")
    assert (status, read["status"]) == (200, "success"), read
    assert "def add" in read["output"]["content"]
    assert (await call("files.read", "r-2", EVE, path="src/utils.py"))[0] == 403
    status, parked = await call("files.delete", "r-3", path="README.md")
    assert (status, parked["status"]) == (200, "parked"), parked
    assert (await web("GET", "/v1/parked", token=EVE))[0] == 403
    [waiting] = (await web("GET", "/v1/parked"))[1]["parked"]
    assert (await web("POST", f"/v1/parked/{waiting['id']}", {"allow": True}))[1][
        "state"
    ] == "allowed"
    async with asyncio.timeout(60):
        while (await call("files.delete", "r-3", path="README.md"))[1]["status"] != "success":
            await asyncio.sleep(0.05)
    assert (await call("files.delete", "r-4", path="README.md"))[1]["status"] in {
        "error",
        "parked",
    }  # used up
    assert (await web("DELETE", f"/v1/workspaces/{workspace['workspace_id']}"))[0] == 204
    assert (await call("files.read", "r-5", path="src/utils.py"))[0] == 404
    assert (repo_of(app) / "README.md").exists()


async def test_running_and_failed_tasks_are_shown(app: Served, web: Web) -> None:
    stub = app.stub()
    repository = common_pb2.Repository(url=str(repo_of(app)))
    failed = await stub.Deliberate(
        pb.DeliberateRequest(
            task_description=f"WRONG {TASK}",
            role="DEV",
            num_agents=1,
            repository=repository,
            constraints=pb.TaskConstraints(max_iterations=1),
        )
    )
    live = await stub.SubmitDeliberation(
        pb.DeliberateRequest(
            task_description=f"HANG {TASK}", role="DEV", num_agents=2, repository=repository
        )
    )
    async with asyncio.timeout(60):
        while (await web("GET", f"/tasks/{live.task_id}"))[1]["status"] != "IN_PROGRESS":
            await asyncio.sleep(0.1)
    tasks = {task["task_id"]: task for task in (await web("GET", "/tasks"))[1]["tasks"]}
    running, over = tasks[live.task_id], tasks[failed.task_id]
    assert (running["status"], running["progress"] < 100) == ("IN_PROGRESS", True)
    assert [seat["status"] for seat in running["seats"]] == ["working", "working"]
    assert over["final_state"] == "no_winner"
    assert over["error"]
    assert TASK in over["description"]
    assert (await web("GET", "/tasks", token=EVE))[1]["tasks"] == []
    assert (await web("GET", f"/tasks/{live.task_id}", token=EVE))[0] == 404
    await stub.CancelDeliberation(pb.CancelDeliberationRequest(task_id=live.task_id))
    async with asyncio.timeout(60):
        while (await web("GET", f"/tasks/{live.task_id}"))[1]["status"] != "CANCELLED":
            await asyncio.sleep(0.1)
    assert git(repo_of(app), "branch", "--list", "moothall/*") == ""


async def test_a_kernel_task_runs_from_its_prompt_to_its_end(app: Served) -> None:
    stub: Any = AgentKernelStub(app.channel)
    create = kernel.CreateTaskRequest(
        prompt=TASK, workspace=str(repo_of(app)), agent="DEV", task_id="kernel-1"
    )
    task = await stub.CreateTask(create, **as_(ALICE))
    assert (await stub.CreateTask(create, **as_(ALICE))).task_id == task.task_id == "kernel-1"
    first = stub.StreamTaskEvents(
        kernel.StreamTaskEventsRequest(task_id=task.task_id), **as_(ALICE)
    )
    first_events = [await first.read() for _ in range(3)]
    first.cancel()  # the client disconnects and returns

    def execution(
        execution_id: str, tool: str, token: str = task.capability_token, **arguments: Any
    ) -> Any:
        request = kernel.ExecuteToolRequest(
            task_id=task.task_id, execution_id=execution_id, capability_token=token, tool=tool
        )
        request.arguments.update(arguments)
        return stub.ExecuteTool(request, **as_(ALICE))

    runner: Any = SecureRunnerStub(app.channel)
    code = "len(files.read(path='src/utils.py')['content'])"
    order = runner_pb.ExecuteRequest(
        task_id=task.task_id,
        execution_id="x-1",
        code=code,
        tools=["files.read"],
        capability_token=task.capability_token,
    )
    executed = await runner.Execute(order, **as_(ALICE))  # opens the task's workspace
    assert (executed.status, executed.tool_call_count, executed.result.number_value > 0) == (
        "success",
        1,
        True,
    ), executed
    result = await execution("e-1", "files.append", path="src/utils.py", content="# mine\n")
    assert result.status == "success", result
    assert (
        await execution("e-1", "files.append", path="src/utils.py", content="# mine\n") == result
    )  # runs once
    content = dict((await execution("e-2", "files.read", path="src/utils.py")).output.struct_value)[
        "content"
    ]
    assert content.count("# mine") == 1
    assert "hello_world" not in content  # the agent's own workspace is a different one
    with pytest.raises(grpc.aio.AioRpcError, match="token"):
        await execution("e-3", "files.read", token="x.y.z", path="src/utils.py")

    rest = await events(stub, task.task_id, first_events[-1].seq)
    all_events = await events(stub, task.task_id)
    assert all_events == [*first_events, *rest]
    for place, event in enumerate(all_events):
        assert await events(stub, task.task_id, event.seq) == all_events[place + 1 :]
    decided = dict(all_events[-1].payload)
    assert (all_events[-1].type, decided["final_state"], decided["proven"]) == (
        "moothall.deliberation.decided",
        "committed",
        True,
    )
    assert all_events[-1].time.seconds > 0
    branch = str(decided["branch"])
    assert branch == "moothall/team-a_kernel-1"  # ids of a tenant have a distinct key in the server
    assert "hello_world" in git(repo_of(app), "show", f"{branch}:src/utils.py")
    git(repo_of(app), "branch", "-D", branch)


async def test_a_kernel_task_is_cancelled(app: Served, model: ScriptedModel) -> None:
    stub: Any = AgentKernelStub(app.channel)
    task = await stub.CreateTask(
        kernel.CreateTaskRequest(prompt=f"HANG {TASK}", workspace=str(repo_of(app))), **as_(ALICE)
    )
    async with asyncio.timeout(60):
        while not model.in_flight:
            await asyncio.sleep(0.05)
    with pytest.raises(grpc.aio.AioRpcError, match="no deliberation"):
        await stub.CancelTask(kernel.CancelTaskRequest(task_id=task.task_id), **as_(EVE))
    assert (
        await stub.CancelTask(kernel.CancelTaskRequest(task_id=task.task_id), **as_(ALICE))
    ).status == "CANCELLED"
    assert dict((await events(stub, task.task_id))[-1].payload)["status"] == "CANCELLED"
    async with asyncio.timeout(20):
        while model.in_flight:
            await asyncio.sleep(0.05)
    request = kernel.ExecuteToolRequest(
        task_id=task.task_id,
        execution_id="late",
        capability_token=task.capability_token,
        tool="files.list",
    )
    with pytest.raises(grpc.aio.AioRpcError, match="was cancelled"):
        await stub.ExecuteTool(request, **as_(ALICE))


def as_(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 120}


async def events(stub: Any, task_id: str, after_seq: int = 0) -> list[kernel.TaskEvent]:
    request = kernel.StreamTaskEventsRequest(task_id=task_id, after_seq=after_seq)
    return [event async for event in stub.StreamTaskEvents(request, **as_(ALICE))]


async def test_health_reports_a_killed_host_and_a_stopped_model_server(tmp_path: Path) -> None:
    async with scripted_model(answer_turns_with(by_task)) as model:
        command = make_command(tmp_path, model.base_url, hosts="ray")
        port = model.base_url.rpartition(":")[2].partition("/")[0]
    command.extra |= {"MOOTHALL_WEB__PORT": "0"}
    async with run_server(command) as app, aiohttp.ClientSession(f"http://{app.web}") as session:
        web = Web(session)

        async def health(token: str = ALICE) -> tuple[int, str, dict[str, Any]]:
            status, document = await web("GET", "/health", token=token)
            return status, document["status"], {part["name"]: part for part in document["parts"]}

        async with scripted_model(answer_turns_with(by_task), port=int(port)):
            status, overall, parts = await health()
            assert (status, overall) == (200, "healthy"), parts
            assert set(parts) == {"bus", "model", "fleet", "sandbox", "graph"}
            assert parts["fleet"]["detail"] == "1 of 1 hosts are at work"
            assert not any(part["detail"] for part in (await health(token=""))[2].values())
            async with asyncio.timeout(60):
                # Ray restarts it quickly: retry until a request falls in between.
                while (report := await health())[0] != 503:
                    for child in descendants(app.pid):
                        if command_line(child).startswith("ray::HostActor"):
                            with suppress(psutil.NoSuchProcess):
                                child.kill()
                    await asyncio.sleep(0.2)
                assert [name for name, part in report[2].items() if part["status"] == "down"] == [
                    "fleet"
                ]
                while (await health())[0] != 200:  # Ray restarts it
                    await asyncio.sleep(0.2)
        async with asyncio.timeout(60):
            while (report := await health())[0] != 503:
                await asyncio.sleep(0.2)
        assert report[1] == "down"
        assert {name for name, part in report[2].items() if part["status"] == "down"} == {"model"}
        assert "does not answer" in report[2]["model"]["detail"]
