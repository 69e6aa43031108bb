"""SecureRunner: a real gRPC server, a real bus and real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from moothall.authorization.audit import verify_all
from moothall.authorization.tokens import narrow
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.task import RepositoryRef
from moothall.pb.runner.v1 import runner_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2
from moothall.tool_sessions.manager import PendingWorkspace
from support.callers import OTHER
from support.tool_server import ToolServer, open_tool_server

pytestmark = pytest.mark.e2e
FILES = {"src/a.py": "A = 1\n", "Makefile": "test:\n\ttrue\n"}
WITHOUT_REACH = """
told = []
for path in ('/etc/passwd', '/workspace/src/a.py', 'src/a.py'):
    try:
        open(path).read()
        told.append('open')
    except (PermissionError, OSError):
        pass
told.append(ws.read('src/a.py'))
told
"""


def data(response: pb.ExecuteResponse) -> Any:
    return json_format.MessageToDict(response.result)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[ToolServer]:
    async with open_tool_server(tmp_path, FILES) as opened:
        yield opened


async def test_code_without_network_or_files_reads_a_file_through_the_tool_gateway(
    app: ToolServer,
) -> None:
    opened = await app.open()
    result = await app.execute(opened, "e-1", WITHOUT_REACH, tools=["files.read"])
    assert (result.status, result.usage.tier, result.tool_call_count) == ("success", "monty", 1), (
        result
    )
    assert data(result) == ["A = 1\n"]
    socket = await app.execute(
        opened,
        "e-2",
        "import socket\nsocket.create_connection(('127.0.0.1', 1), 1)",
        tools=["files.read"],
    )
    assert (socket.status, socket.usage.tier) == ("error", "python")
    assert "No module named 'socket'" in socket.usage.reason
    assert "Network is unreachable" in socket.error or "refused" in socket.error
    report = verify_all(app.data_dir)
    assert (report.ok, report.unfinished) == (True, 0)


async def test_inputs_are_passed_and_value_and_output_returned(app: ToolServer) -> None:
    opened = await app.open()
    code = "print('sum of', numbers)\n{'sum': sum(numbers), 'half': sum(numbers) / 2}"
    result = await app.execute(opened, "e-1", code, inputs={"numbers": [1, 2]})
    assert (result.status, result.stdout) == ("success", "sum of [1, 2]\n"), result
    assert data(result) == {"sum": 3.0, "half": 1.5}
    none = await app.execute(opened, "e-2", "x = 1")
    assert none.result.WhichOneof("kind") == "null_value"


async def test_the_same_execution_runs_once(app: ToolServer) -> None:
    opened = await app.open()
    code = "files.append('log.txt', 'once\\n')\nws.read('log.txt')"
    tools = ["files.append", "files.read"]
    first = await app.execute(opened, "e-1", code, tools=tools)
    repeated = await app.execute(opened, "e-1", code, tools=tools)
    assert (first.status, data(first)) == ("success", "once\n")
    assert repeated == first
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await app.execute(opened, "e-1", code + "\n1", tools=tools)
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_tools_must_be_granted_by_the_request_and_the_token(app: ToolServer) -> None:
    opened = await app.open()
    unlisted = await app.execute(opened, "e-1", "ws.write('a', 'b')", tools=["files.read"])
    assert (unlisted.status, "there is no ws.write here" in unlisted.error) == ("error", True)
    without_grant = await app.execute(opened, "e-2", "ws.read('src/a.py')")
    assert (without_grant.status, "NameError" in without_grant.error) == ("error", True)
    narrowed_workspace = tool_pb2.OpenWorkspaceResponse(
        workspace_id=opened.workspace_id,
        capability_token=narrow(opened.capability_token, seconds=60, tools=["files.list"]),
    )
    narrowed = await app.execute(
        narrowed_workspace, "e-3", "ws.read('src/a.py')", tools=["files.read", "files.list"]
    )
    assert (narrowed.status, narrowed.tool_call_count) == ("error", 0)
    assert "there is no ws.read here" in narrowed.error
    denied = await app.execute(
        narrowed_workspace,
        "e-4",
        "import sqlite3\nopen('/workspace/src/a.py').read()",
        tools=["files.list"],
    )
    assert (denied.status, "No module named 'sqlite3'" in denied.error) == ("invalid", True), denied


async def test_paths_outside_the_workspace_are_refused_in_both_tiers(app: ToolServer) -> None:
    opened = await app.open()
    await app.call(opened, "files.write", "r-1", path="keep.txt", content="kept\n")
    for number, first in enumerate(("", "import sqlite3\n")):
        code = f"""{first}told = []
for path in ('../../etc/passwd', '/etc/passwd', 'src/../../etc/passwd'):
    try:
        told.append(ws.read(path))
    except RuntimeError as error:
        told.append(str(error).split(': ')[1])
told"""
        result = await app.execute(opened, f"e-{number}", code, tools=["files.read"])
        assert result.status == "success", result
        assert set(data(result)) <= {"invalid", "blocked"}


async def test_limits_of_the_request_are_enforced(app: ToolServer) -> None:
    opened = await app.open()
    spin = await app.execute(
        opened, "e-1", "while True:\n    pass", limits=pb.Limits(timeout_ms=500)
    )
    assert spin.status == "timeout"
    large = await app.execute(
        opened, "e-2", "len('a' * 40_000_000)", limits=pb.Limits(memory_mb=20)
    )
    assert large.status == "memory"
    calling = "for _ in range(9):\n    ws.read('src/a.py')"
    calling_thrice = await app.execute(
        opened, "e-3", calling, tools=["files.read"], limits=pb.Limits(max_tool_calls=2)
    )
    assert (calling_thrice.status, calling_thrice.tool_call_count) == ("budget_exceeded", 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"execution_id": ""}, "execution_id"),
        ({"code": "  "}, "code has"),
        ({"inputs": {"no name": 1}}, "cannot be a variable"),
        ({"inputs": {"ws": 1}}, "cannot be a variable"),
        ({"tools": ["files.nothing"]}, "there is no tool"),
        ({"limits": pb.Limits(timeout_ms=-1)}, "limits.timeout_ms"),
    ],
)
async def test_an_invalid_request_is_refused_with_the_reason(
    app: ToolServer, fields: dict[str, object], message: str
) -> None:
    opened = await app.open()
    arguments = {"execution_id": "e-1", "code": "1", **fields}
    with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
        await app.execute(opened, **arguments)  # type: ignore[arg-type]  # this is what the test is about
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_another_caller_and_another_token_are_refused(app: ToolServer) -> None:
    opened = await app.open()
    with pytest.raises(grpc.aio.AioRpcError) as stolen:
        await app.execute(opened, "e-1", "1", OTHER)
    bare = tool_pb2.OpenWorkspaceResponse(workspace_id=opened.workspace_id)
    with pytest.raises(grpc.aio.AioRpcError) as tokenless:
        await app.execute(bare, "e-1", "1")
    assert {stolen.value.code(), tokenless.value.code()} == {grpc.StatusCode.PERMISSION_DENIED}


async def test_the_workspace_of_a_kernel_task_is_opened_by_its_first_execution(
    app: ToolServer,
) -> None:
    async def find(workspace: str, principal: Principal) -> PendingWorkspace | None:
        del principal
        return (
            PendingWorkspace(RepositoryRef(url=str(app.repo)), "dev")
            if workspace == "task-1"
            else None
        )

    app.session_manager.await_calls(find)
    token = app.session_manager.token(LOCAL, "task-1", "dev", 60)
    task = tool_pb2.OpenWorkspaceResponse(workspace_id="task-1", capability_token=token)
    result = await app.execute(task, "e-1", "ws.read('src/a.py')", tools=["files.read"])
    assert (result.status, data(result)) == ("success", "A = 1\n"), result


async def test_two_concurrent_callers_share_one_run_and_it_survives_a_cancelled_caller(
    app: ToolServer,
) -> None:
    opened = await app.open()
    code = "files.append('log.txt', 'once\\n')\nws.read('log.txt')"
    tools = ["files.append", "files.read"]
    responses = await asyncio.gather(
        *(app.execute(opened, "e-1", code, tools=tools) for _ in range(2))
    )
    assert [data(response) for response in responses] == ["once\n"] * 2
    spin = "while True:\n    pass"
    cancelled = asyncio.ensure_future(
        app.execute(opened, "e-2", spin, limits=pb.Limits(timeout_ms=3000))
    )
    await asyncio.sleep(0.5)
    cancelled.cancel()
    later_response = await app.execute(opened, "e-2", spin, limits=pb.Limits(timeout_ms=3000))
    assert later_response.status == "timeout"
