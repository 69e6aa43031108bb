"""Two tenants with tasks and stories of the same ids at the same time on one server: neither learns
of the other's.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from google.protobuf import json_format
from served import ALICE, EVE, Served, make_command, run_server

from command import git
from moothall.pb.kernel.v1 import kernel_pb2
from moothall.pb.kernel.v1.kernel_pb2_grpc import AgentKernelStub
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import ScriptedModel

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SAME, LATER = "the-same", "later"
TEAMS = {ALICE: "team-a", EVE: "team-e"}


async def test_equal_task_ids_of_two_tenants_are_independent(
    repo: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    command = make_command(tmp_path, model.base_url)
    command.extra |= {
        "MOOTHALL_WEB__PORT": "0",
        "MOOTHALL_WORKSPACE__ALLOWED_ROOTS": json.dumps([str(repo)]),
    }
    async with run_server(command) as app:
        alice = app.stub()
        await alice.SubmitDeliberation(_request(SAME, "WRONG: make hello_world", repo))
        await alice.SubmitDeliberation(_request(LATER, "HANG"))
        await _assert_unknown(app, EVE, SAME)
        await asyncio.gather(_run_alice(app), _run_eve(app, repo))
        await _check_separate_workspaces(app, repo)
        await _check_separate_stories(app)
        views = {token: await _tenant_view(app, token) for token in TEAMS}
    async with run_server(command) as restarted:
        for token, team in TEAMS.items():
            assert await _tenant_view(restarted, token) == views[token]
            other_team = next(name for name in TEAMS.values() if name != team)
            assert other_team not in json.dumps(views[token])
        assert (
            await restarted.stub(EVE).CancelDeliberation(
                pb.CancelDeliberationRequest(task_id=LATER)
            )
        ).status
        response = await restarted.stub().GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id=LATER)
        )
        assert response.status in {
            pb.DELIBERATION_STATUS_PENDING,
            pb.DELIBERATION_STATUS_IN_PROGRESS,
        }
        await restarted.stub().CancelDeliberation(pb.CancelDeliberationRequest(task_id=LATER))
        listed = await command("list", "--json")
        assert listed.document["tasks"] == []  # the stories of this machine's own tenant


def _request(task_id: str, description: str, repo: Path | None = None) -> pb.DeliberateRequest:
    request = pb.DeliberateRequest(
        task_description=description, role="dev", num_agents=1, task_id=task_id, protocol="single"
    )
    if repo is not None:
        request.repository.CopyFrom(common_pb2.Repository(url=str(repo)))
    return request


async def _run_alice(app: Served) -> None:
    updates = [
        update
        async for update in app.stub().WatchDeliberation(
            pb.WatchDeliberationRequest(task_id=SAME), timeout=240
        )
    ]
    assert {update.task_id for update in updates} == {SAME}
    assert not (
        await app.stub().GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=SAME))
    ).proven


async def _run_eve(app: Served, repo: Path) -> None:
    eve = app.stub(EVE)
    body = {
        "task_description": "HANG",
        "role": "dev",
        "num_agents": 1,
        "task_id": LATER,
        "protocol": "single",
    }
    status, response = await _http(
        app, EVE, "/orchestrator.v1.OrchestratorService/SubmitDeliberation", body
    )
    assert (status, response["task_id"]) == (200, LATER)
    answer = await eve.Deliberate(_request(SAME, "Make hello_world", repo), timeout=240)
    assert (answer.task_id, answer.proven, answer.branch) == (SAME, True, f"moothall/team-e_{SAME}")
    assert "Hello, World!" in git(repo, "show", f"{answer.branch}:src/utils.py")
    assert "team-a" not in git(repo, "log", "-1", "--format=%B", answer.branch)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await eve.SubmitDeliberation(_request(SAME, "another"))
    assert caught.value.details() == f"task_id {SAME!r} is taken by another deliberation"


async def _assert_unknown(app: Served, token: str, task_id: str) -> None:
    """Assert that every endpoint answers as for an unknown id."""
    assert await _answers(app, token, task_id) == [
        [str(part).replace("nobodys", task_id) for part in answer]
        for answer in await _answers(app, token, "nobodys")
    ]


async def _answers(app: Served, token: str, task_id: str) -> list[list[str]]:
    stub = app.stub(token)
    statuses: list[list[str]] = []
    for call in (
        stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=task_id)),
        stub.CancelDeliberation(pb.CancelDeliberationRequest(task_id=task_id)),
        stub.WatchDeliberation(pb.WatchDeliberationRequest(task_id=task_id)).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        statuses.append([str(caught.value.code()), str(caught.value.details())])
    context = await stub.GetTaskContext(pb.GetTaskContextRequest(task_id=task_id, role="dev"))
    statuses.append([context.context_text, str(context.token_count)])
    status, document = await _http(app, token, f"/tasks/{task_id}")
    assert status == 404
    statuses.append([str(status), str(document["detail"]), str(document["code"])])
    return statuses


async def _http(app: Served, token: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.request("POST" if body else "GET", f"http://{app.web}{path}", json=body) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def _check_separate_workspaces(app: Served, repo: Path) -> None:
    kernel: Any = AgentKernelStub(app.channel)

    def by(token: str) -> dict[str, Any]:
        return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 120}

    request = kernel_pb2.CreateTaskRequest(prompt="HANG", workspace=str(repo), task_id="hold")
    tasks = {token: await kernel.CreateTask(request, **by(token)) for token in TEAMS}
    assert {task.task_id for task in tasks.values()} == {"hold"}

    async def write_and_read(token: str) -> str:
        called = {"task_id": "hold", "capability_token": tasks[token].capability_token}
        write = kernel_pb2.ExecuteToolRequest(execution_id="e-1", tool="files.write", **called)
        write.arguments.update({"path": "whose.txt", "content": TEAMS[token]})
        assert (await kernel.ExecuteTool(write, **by(token))).status == "success"
        read = kernel_pb2.ExecuteToolRequest(execution_id="e-2", tool="files.read", **called)
        read.arguments.update({"path": "whose.txt"})
        return str(
            json_format.MessageToDict((await kernel.ExecuteTool(read, **by(token))).output)[
                "content"
            ]
        )

    assert await asyncio.gather(*map(write_and_read, TEAMS)) == list(TEAMS.values())
    for token in TEAMS:
        await kernel.CancelTask(kernel_pb2.CancelTaskRequest(task_id="hold"), **by(token))


async def _check_separate_stories(app: Served) -> None:
    for token, team in TEAMS.items():
        moved = pb.ProcessPlanningEventRequest(
            event_type="story.changed",
            case_id="story-1",
            plan_id="plan-1",
            metadata={"title": f"Of {team}", "brief": "HAIKU"},
        )
        await app.stub(token).ProcessPlanningEvent(moved)
    for token, team in TEAMS.items():
        planned = await app.stub(token).DeriveSubtasks(
            pb.DeriveSubtasksRequest(case_id="story-1", plan_id="plan-1", roles=["dev"])
        )
        assert [task.description.count(f"Of {team}") for task in planned.tasks] == [1]


async def _tenant_view(app: Served, token: str) -> Any:
    """Return everything that the APIs report to a tenant about the task, once it has ended."""
    stub = app.stub(token)
    view: dict[str, Any] = {}
    answer = await stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=SAME))
    answer.metadata.ClearField("timestamp_ms")
    view["result"] = json_format.MessageToDict(answer)
    watched = stub.WatchDeliberation(pb.WatchDeliberationRequest(task_id=SAME))
    view["events"] = [json_format.MessageToDict(update) async for update in watched]
    assert {event["event"]["subject"] for event in view["events"]} == {SAME}
    status, view["task"] = await _http(app, token, f"/tasks/{SAME}")
    assert (status, view["task"]["task_id"]) == (200, SAME)
    _, listed = await _http(app, token, "/tasks?state=ended")
    view["ended"] = sorted(task["task_id"] for task in listed["tasks"])
    assert view["ended"] == ["hold", SAME]
    async with asyncio.timeout(30):  # the graph is updated a moment later
        while SAME not in (response := await stub.GetTaskContext(_context())).context_text:
            await asyncio.sleep(0.1)
    view["context"] = response.context_text
    stats = (await stub.GetStatus(pb.GetStatusRequest(include_stats=True))).stats
    view["asked"] = stats.total_deliberations
    assert view["asked"] == 3
    return view


def _context() -> pb.GetTaskContextRequest:
    return pb.GetTaskContextRequest(
        task_id=SAME, role="dev", options=pb.ContextOptions(include_timeline=True)
    )
