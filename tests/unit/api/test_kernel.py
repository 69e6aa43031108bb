"""AgentKernel over gRPC: a deliberation service in memory, a real tool gateway, workspaces that
answer from a function.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import RepositoryRef
from moothall.pb.kernel.v1 import kernel_pb2 as pb
from moothall.pb.kernel.v1 import kernel_pb2_grpc as pb_grpc
from moothall.pb.moothall.v1 import common_pb2
from moothall.tool_sessions.bus_api import of_tasks
from support.callers import OTHER, TOKEN, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations
from support.session_manager import SHA, SessionsFixture, open_session_manager


class Kernel:
    """A stub that carries a token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = pb_grpc.AgentKernelStub(channel)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        def call(request: Any, token: str = TOKEN) -> Any:
            return method(request, metadata=[("authorization", f"Bearer {token}")], timeout=20)

        return call


@pytest.fixture
async def backend(
    tmp_path: Path, deliberations: MemoryDeliberations
) -> AsyncIterator[SessionsFixture]:
    async with open_session_manager(tmp_path, max_open=2) as fixture:
        fixture.session_manager.await_calls(of_tasks(deliberations))
        yield fixture


@pytest.fixture
async def kernel(
    deliberations: MemoryDeliberations, backend: SessionsFixture
) -> AsyncIterator[Kernel]:
    async with serving(
        deliberations,
        with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
    ) as app:
        yield Kernel(app.channel)


async def create_task(kernel: Kernel, **fields: Any) -> pb.CreateTaskResponse:
    request_fields = {"prompt": "What does greet do?", "workspace": "sample", **fields}
    response: pb.CreateTaskResponse = await kernel.CreateTask(
        pb.CreateTaskRequest(**request_fields)
    )
    return response


def execution(
    task: pb.CreateTaskResponse,
    execution_id: str = "e-1",
    tool: str = "files.read",
    **arguments: Any,
) -> pb.ExecuteToolRequest:
    request = pb.ExecuteToolRequest(
        task_id=task.task_id,
        execution_id=execution_id,
        capability_token=task.capability_token,
        tool=tool,
    )
    request.arguments.update(arguments or {"path": "a.py", "lines": 3})
    return request


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def test_a_task_is_a_deliberation_of_one_seat(
    deliberations: MemoryDeliberations, kernel: Kernel
) -> None:
    task = await create_task(
        kernel, agent="QA", budget=common_pb2.Budget(tokens=1000), task_id="mine", ref="main"
    )
    request = deliberations.request("mine")
    assert (request.role, request.protocol, request.num_agents, request.budget.tokens) == (
        "QA",
        "ask",
        1,
        1000,
    )
    assert request.repository == RepositoryRef(id="sample", ref="main")
    qa_task = await create_task(
        kernel, agent="QA", budget=common_pb2.Budget(tokens=1000), task_id="mine", ref="main"
    )
    assert qa_task.task_id == task.task_id == "mine"
    assert qa_task.capability_token != ""
    code, _ = await refusal_of(
        kernel.CreateTask(pb.CreateTaskRequest(prompt="another", task_id="mine"))
    )
    assert code is grpc.StatusCode.ALREADY_EXISTS
    await create_task(kernel, workspace="https://example.test/x.git", task_id="by-url")
    assert deliberations.request("by-url").repository == RepositoryRef(
        url="https://example.test/x.git"
    )
    text = await create_task(kernel, workspace="", task_id="text")
    assert (
        deliberations.request("text").repository,
        deliberations.request("text").role,
        text.capability_token,
    ) == (
        None,
        "dev",
        "",
    )


async def test_events_are_streamed_in_order_and_a_reconnecting_client_misses_none(
    deliberations: MemoryDeliberations, kernel: Kernel
) -> None:
    task = await create_task(kernel)
    first = kernel.StreamTaskEvents(pb.StreamTaskEventsRequest(task_id=task.task_id))
    request_event = await first.read()
    assert (request_event.type, request_event.seq) == ("moothall.deliberation.requested", 1)
    assert json_format.MessageToDict(request_event.payload)["description"] == "What does greet do?"
    await deliberations.record(
        task.task_id, EventType.SEAT_TURN, {"task_id": task.task_id, "turn": 1, "thought": "look"}
    )
    first_event = await first.read()
    first.cancel()
    await deliberations.record(
        task.task_id, EventType.SEAT_TURN, {"task_id": task.task_id, "turn": 2}
    )
    await deliberations.decide(
        Outcome(task.task_id, DeliberationStatus.COMPLETED, winner_id="agent-dev-001")
    )
    rest = [
        event
        async for event in kernel.StreamTaskEvents(
            pb.StreamTaskEventsRequest(task_id=task.task_id, after_seq=first_event.seq)
        )
    ]
    assert [event.seq for event in rest] == [3, 4]
    assert rest[-1].type == "moothall.deliberation.decided"
    sequence_numbers = [
        event.seq
        async for event in kernel.StreamTaskEvents(pb.StreamTaskEventsRequest(task_id=task.task_id))
    ]
    assert sequence_numbers == [1, 2, 3, 4]
    theirs = kernel.StreamTaskEvents(pb.StreamTaskEventsRequest(task_id=task.task_id), OTHER)
    assert (await refusal_of(theirs.read()))[0] is grpc.StatusCode.NOT_FOUND
    invalid_stream = kernel.StreamTaskEvents(
        pb.StreamTaskEventsRequest(task_id=task.task_id, after_seq=-1)
    )
    assert (await refusal_of(invalid_stream.read()))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_tool_runs_once_per_execution_id_in_the_workspace_of_its_task(
    kernel: Kernel, backend: SessionsFixture
) -> None:
    task = await create_task(kernel)
    assert backend.fake_workspaces.fake_workspaces == {}  # opened when it is called
    answers = await asyncio.gather(
        *(kernel.ExecuteTool(execution(task, f"e-{number}")) for number in (1, 2, 3))
    )
    assert [answer.status for answer in answers] == ["success"] * 3
    assert json_format.MessageToDict(answers[0].output)["lines"] == 3
    fake_workspace = backend.fake_workspaces.fake_workspaces[task.task_id]
    assert len(backend.repository.requested_refs) == 1  # three at once opened one
    assert backend.repository.requested_refs[0] == RepositoryRef(id="sample", ref=SHA)
    repeated_answer = await kernel.ExecuteTool(execution(task, "e-1"))
    assert repeated_answer == answers[0]
    assert len(fake_workspace.calls) == 3
    assert (await refusal_of(kernel.ExecuteTool(execution(task, "e-1", path="b.py"))))[
        0
    ] is grpc.StatusCode.ALREADY_EXISTS
    blocked = await kernel.ExecuteTool(execution(task, "e-4", "git.push", branch="main"))
    assert (blocked.status, "not granted" in blocked.error) == ("blocked", True)


async def test_an_additional_port_serves_the_same_services(
    deliberations: MemoryDeliberations, backend: SessionsFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with (
        serving(
            deliberations,
            with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
            more_ports=(port,),
        ),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert (await create_task(Kernel(channel), task_id="elsewhere")).task_id == "elsewhere"


async def test_a_capability_token_is_bound_to_its_task_and_caller(kernel: Kernel) -> None:
    task, other_task = await create_task(kernel), await create_task(kernel)
    crossed = pb.CreateTaskResponse(
        task_id=other_task.task_id, capability_token=task.capability_token
    )
    text = await create_task(kernel, workspace="")
    for request, token in (
        (execution(crossed), TOKEN),
        (execution(task), OTHER),
        (execution(pb.CreateTaskResponse(task_id=task.task_id)), TOKEN),
        (execution(text), TOKEN),
    ):
        assert (await refusal_of(kernel.ExecuteTool(request, token)))[
            0
        ] is grpc.StatusCode.PERMISSION_DENIED
    assert "execution_id" in (await refusal_of(kernel.ExecuteTool(execution(task, ""))))[1]
    assert (await refusal_of(kernel.ExecuteTool(execution(task), "nobody")))[
        0
    ] is grpc.StatusCode.UNAUTHENTICATED


async def test_an_error_at_the_opening_is_reported_and_harmless(
    kernel: Kernel, backend: SessionsFixture
) -> None:
    missing = await create_task(kernel, workspace="nowhere")
    for _ in range(2):
        code, message = await refusal_of(kernel.ExecuteTool(execution(missing)))
        assert (code, message) == (grpc.StatusCode.NOT_FOUND, "no repository 'nowhere'")
    for _ in range(2):
        assert (await kernel.ExecuteTool(execution(await create_task(kernel)))).status == "success"
    assert (await refusal_of(kernel.ExecuteTool(execution(await create_task(kernel)))))[
        0
    ] is grpc.StatusCode.RESOURCE_EXHAUSTED
    unknown = backend.session_manager.token(LOCAL, "task-unknown", "dev", 60)
    unknown_task = pb.CreateTaskResponse(task_id="task-unknown", capability_token=unknown)
    assert (
        "there is no open workspace"
        in (await refusal_of(kernel.ExecuteTool(execution(unknown_task))))[1]
    )


async def test_cancelling_closes_the_workspace_permanently(
    deliberations: MemoryDeliberations, kernel: Kernel, backend: SessionsFixture
) -> None:
    task = await create_task(kernel)
    await kernel.ExecuteTool(execution(task))
    response = await kernel.CancelTask(
        pb.CancelTaskRequest(task_id=task.task_id, reason="changed my mind")
    )
    assert response.status == "CANCELLED"
    assert deliberations.cancelled == {task.task_id: "changed my mind"}
    assert backend.fake_workspaces.closed == [task.task_id]
    code, words = await refusal_of(kernel.ExecuteTool(execution(task, "e-2")))
    assert (code, "was cancelled" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)
    assert (
        await kernel.CancelTask(pb.CancelTaskRequest(task_id=task.task_id))
    ).status == "CANCELLED"
    assert (await refusal_of(kernel.CancelTask(pb.CancelTaskRequest(task_id=task.task_id), OTHER)))[
        0
    ] is grpc.StatusCode.NOT_FOUND


async def test_tasks_of_two_tenants_with_the_same_id_have_separate_workspaces(
    kernel: Kernel, backend: SessionsFixture
) -> None:
    create_request = pb.CreateTaskRequest(
        prompt="What does greet do?", workspace="sample", task_id="same"
    )
    ours = await kernel.CreateTask(create_request)
    assert (await refusal_of(kernel.ExecuteTool(execution(ours), OTHER)))[
        0
    ] is grpc.StatusCode.PERMISSION_DENIED
    unknown = pb.CancelTaskRequest(task_id="same")
    assert await refusal_of(kernel.CancelTask(unknown, OTHER)) == (
        grpc.StatusCode.NOT_FOUND,
        "no deliberation 'same'",
    )
    theirs = await kernel.CreateTask(create_request, OTHER)
    assert ours.task_id == theirs.task_id == "same"
    answers = [
        await kernel.ExecuteTool(execution(ours)),
        await kernel.ExecuteTool(execution(theirs), OTHER),
    ]
    assert [answer.status for answer in answers] == ["success"] * 2
    assert {
        name: len(fake_workspace.calls)
        for name, fake_workspace in backend.fake_workspaces.fake_workspaces.items()
    } == {
        "same": 1,
        "elsewhere_same": 1,
    }
    crossed = pb.CreateTaskResponse(task_id="same", capability_token=ours.capability_token)
    assert (await refusal_of(kernel.ExecuteTool(execution(crossed, "e-2"), OTHER)))[
        0
    ] is grpc.StatusCode.PERMISSION_DENIED
    await kernel.CancelTask(unknown, OTHER)
    assert backend.fake_workspaces.closed == ["elsewhere_same"]
    assert (await kernel.ExecuteTool(execution(ours, "e-3"))).status == "success"
