"""External callers: a real bus, a real gRPC server, real sandboxes. Ray is not needed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from moothall.authorization.audit import verify_all
from moothall.authorization.rules import REVOKED, Revocations
from moothall.domain.event import Channel
from moothall.domain.tool import ToolStatus
from moothall.events.raw_store import letters
from moothall.pb.tool.v1 import tool_pb2 as pb
from support.callers import OTHER, TOKEN
from support.tool_server import ToolServer, open_tool_server

pytestmark = pytest.mark.e2e
PARKS_DELETES = """package moothall.tools
import rego.v1
default decision := {"allow": true}
decision := {"allow": false, "reason": "ask first", "park": true} if input.tool == "files.delete"
"""
FILES = {"src/a.py": "A = 1\n", "Makefile": "test:\n\ttrue\n"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[ToolServer]:
    async with open_tool_server(tmp_path, FILES, rego=PARKS_DELETES) as opened:
        yield opened


async def test_a_workspace_is_opened_used_and_closed(app: ToolServer) -> None:
    opened = await app.open()
    write = await app.call(opened, "files.write", "r-1", path="src/b.py", content="B = 2\n")
    assert (write.status, write.request_id, write.audit_id) == ("success", "r-1", "serve:1")
    read = await app.call(opened, "files.read", "r-2", path="src/b.py", lines=1)
    assert (read.status, read.output["content"]) == ("success", "B = 2\n")
    tests = await app.call(opened, "tests.make", "r-3")
    assert (tests.status, tests.output["verdict"]) == ("success", "passed"), tests
    assert tests.usage.max_rss_bytes > 0
    refused = await app.call(opened, "git.push", "r-4", branch="main")
    assert (refused.status, "not granted" in refused.error) == ("blocked", True)
    repeated = await app.call(opened, "files.write", "r-1", path="src/b.py", content="B = 2\n")
    assert repeated.audit_id == write.audit_id  # the same request runs once
    await app.rpc("CloseWorkspace", pb.CloseWorkspaceRequest(workspace_id=opened.workspace_id))
    with pytest.raises(grpc.aio.AioRpcError) as closed:
        await app.call(opened, "files.read", "r-5", path="src/a.py")
    assert closed.value.code() is grpc.StatusCode.NOT_FOUND
    report = verify_all(app.data_dir)
    assert (report.ok, report.unfinished) == (True, 0)


async def test_callers_are_identified_by_their_tokens_only(app: ToolServer) -> None:
    opened = await app.open(persona="reader")
    other_workspace = await app.open()
    codes = []
    for token, capability in (
        ("nobody", opened.capability_token),
        (OTHER, opened.capability_token),
        (TOKEN, "x.y.z"),
        (TOKEN, ""),
    ):
        stolen = pb.OpenWorkspaceResponse(
            workspace_id=opened.workspace_id, capability_token=capability
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.call(stolen, "files.read", "r-1", token, path="src/a.py")
        codes.append(refused.value.code())
    assert codes == [grpc.StatusCode.UNAUTHENTICATED] + [grpc.StatusCode.PERMISSION_DENIED] * 3
    crossed = pb.OpenWorkspaceResponse(
        workspace_id=other_workspace.workspace_id, capability_token=opened.capability_token
    )
    with pytest.raises(grpc.aio.AioRpcError, match="Audience"):
        await app.call(crossed, "files.read", "r-1", path="src/a.py")
    with pytest.raises(grpc.aio.AioRpcError, match="there is no open workspace"):
        await app.rpc(
            "CloseWorkspace", pb.CloseWorkspaceRequest(workspace_id=opened.workspace_id), OTHER
        )
    narrowed = await app.call(opened, "files.write", "r-2", path="a", content="")
    assert (narrowed.status, "not granted" in narrowed.error) == ("blocked", True)
    await Revocations(app.bus.bucket(REVOKED)).revoke(other_workspace.workspace_id, actor="ann")
    async with asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError, match="revoked"):  # noqa: PT012 - repeated until the switch has taken effect
            while True:
                await app.call(
                    other_workspace,
                    "files.info",
                    f"r-{asyncio.get_running_loop().time()}",
                    path="src/a.py",
                )
                await asyncio.sleep(0.05)


async def test_a_hundred_requests_have_one_result_each_despite_a_killed_executor(
    app: ToolServer,
) -> None:
    opened = await app.open()
    kinds = {
        "files.append": {"path": "log.txt", "content": "line\n"},
        "files.read": {"path": "src/a.py"},
    }
    requests = [
        app.request(opened, tool, f"r-{number}", **kinds[tool])
        for number, tool in enumerate(["files.append", "files.read"] * 50)
    ]
    killed = [app.pid(opened.workspace_id)]
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(app.send(opened.workspace_id, request))
        async with asyncio.timeout(60):
            while not [
                item async for item in app.bus.replay((Channel.TOOLS.of(opened.workspace_id),))
            ]:
                await asyncio.sleep(0.01)
        os.kill(killed[0], signal.SIGKILL)
    results = await app.results(opened.workspace_id, 100)
    assert sorted(result["request_id"] for result in results) == sorted(
        f"r-{number}" for number in range(100)
    )
    counts = Counter(result["status"] for result in results)
    assert counts["success"] >= 99, counts
    assert counts["success"] + counts["outcome_unknown"] == 100, counts
    assert app.pid(opened.workspace_id) not in killed
    appended = sum(
        result["status"] == "success" and result["tool"] == "files.append" for result in results
    )
    read = await app.call(opened, "files.read", "last", path="log.txt")
    assert appended <= read.output["total_lines"] <= appended + counts["outcome_unknown"]
    # The bus delivers the same request again: nothing runs, and there is no second result.
    await app.send(opened.workspace_id, requests[0], ordinal="again")
    assert len(await app.results(opened.workspace_id, 101)) == 101  # including the one of `last`
    assert verify_all(app.data_dir).ok


async def test_an_invalid_request_has_a_result_and_is_a_dead_letter(app: ToolServer) -> None:
    opened = await app.open()
    valid_request = app.request(opened, "files.read", "good", path="src/a.py")
    unbound = {
        **app.request(opened, "files.read", "unbound", path="src/a.py"),
        "capability_token": opened.capability_token,
    }
    changed = {
        **app.request(opened, "files.read", "changed", path="src/a.py"),
        "arguments": {"path": "Makefile"},
    }
    malformed = {**valid_request, "request_id": "wrong", "arguments": ["src/a.py"]}
    unroutable = {**valid_request, "request_id": "lost", "workspace": "ws-gone"}
    for data in (malformed, unbound, changed, valid_request):
        await app.send(opened.workspace_id, data)
    await app.send("ws-gone", unroutable)
    results = {result["request_id"]: result for result in await app.results(opened.workspace_id, 4)}
    assert {key: result["status"] for key, result in results.items()} == {
        "wrong": ToolStatus.INVALID,
        "unbound": ToolStatus.BLOCKED,
        "changed": ToolStatus.BLOCKED,
        "good": ToolStatus.SUCCESS,
    }
    assert "arguments" in results["wrong"]["error"]
    assert "bound to its request" in results["unbound"]["error"]
    [lost_result] = await app.results("ws-gone", 1)
    assert (lost_result["request_id"], lost_result["status"]) == ("lost", ToolStatus.BLOCKED)
    buried = [letter async for letter in letters(app.bus)]
    assert [letter.code for letter in buried] == ["INVALID_REQUEST"]


async def test_too_many_workspaces_and_too_long_a_lifetime_are_refused(
    app: ToolServer,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="ttl_seconds is 999999"):
        await app.open(ttl_seconds=999999)
    with pytest.raises(grpc.aio.AioRpcError, match="unknown persona"):
        await app.open(persona="king")
    with pytest.raises(grpc.aio.AioRpcError, match="repository is missing"):
        await app.rpc("OpenWorkspace", pb.OpenWorkspaceRequest(role="dev"))
    short = await app.open(ttl_seconds=1)
    async with asyncio.timeout(60):
        while app.session_manager.is_open(short.workspace_id):
            await asyncio.sleep(0.05)
    with pytest.raises(grpc.aio.AioRpcError, match=r"its time is over|expired"):
        await app.call(short, "files.read", "r-1", path="src/a.py")


async def test_an_approved_parked_request_runs_once(app: ToolServer) -> None:
    opened = await app.open()
    parked = await app.call(opened, "files.delete", "r-1", path="src/a.py")
    assert (parked.status, "ask first" in parked.error) == ("parked", True)
    await app.send(opened.workspace_id, app.request(opened, "files.delete", "r-2", path="Makefile"))
    await app.results(opened.workspace_id, 2)
    listed = (await app.rpc("ListParked", pb.ListParkedRequest())).parked
    assert [(item.request_id, item.tool, item.arguments["path"]) for item in listed] == [
        ("r-1", "files.delete", "src/a.py"),
        ("r-2", "files.delete", "Makefile"),
    ]
    for method, request in (
        ("ListParked", pb.ListParkedRequest()),
        ("ResolveParked", pb.ResolveParkedRequest(request_id="r-1", allow=True)),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="eve is not an operator"):
            await app.rpc(method, request, OTHER)
    allowed = await app.rpc("ResolveParked", pb.ResolveParkedRequest(request_id="r-1", allow=True))
    refused = await app.rpc(
        "ResolveParked", pb.ResolveParkedRequest(request_id=listed[1].id, reason="needed")
    )
    assert (allowed.state, refused.state) == ("allowed", "refused")
    results = await app.results(opened.workspace_id, 3)
    assert [(result["request_id"], result["status"]) for result in results] == [
        ("r-1", "parked"),
        ("r-2", "parked"),
        ("r-1", "success"),
    ]
    approved = await app.call(opened, "files.delete", "r-1", path="src/a.py")
    assert (approved.status, approved.output["deleted"]) == ("success", True)
    assert (
        await app.call(opened, "files.delete", "r-3", path="Makefile")
    ).error == "an operator refused it: needed"
    with pytest.raises(grpc.aio.AioRpcError, match="it was allowed already"):
        await app.rpc("ResolveParked", pb.ResolveParkedRequest(request_id="r-1", allow=True))
    assert verify_all(app.data_dir).ok
