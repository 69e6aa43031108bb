"""The gateway's guarantees for callers over gRPC: tenants are isolated, a circuit breaker opens and
closes, a workflow waits for approval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from counting_site import Site, counting_site

from moothall.authorization.audit import verify_all
from moothall.authorization.rules import SWITCHES, Switches
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.tool.v1 import tool_pb2 as pb
from support.callers import OTHER, TOKEN
from support.tool_server import ToolServer, open_tool_server

pytestmark = pytest.mark.e2e
ROLES = 'roles: {dev: {tools: {"files.*": [read, write], "http.*": [outside], "web.*": [outside]}}}'
REGO = """package moothall.tools
import rego.v1
default decision := {"allow": true}
decision := {"allow": false, "reason": "ask first", "park": true} if input.tool == "http.delete"
"""


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with counting_site() as served:
        yield served


@pytest.fixture
async def app(tmp_path: Path, site: Site) -> AsyncIterator[ToolServer]:
    async with open_tool_server(
        tmp_path,
        {"a.txt": "A\n"},
        roles=ROLES,
        rego=REGO,
        http={"allow": [f"127.0.0.1:{site.port}"]},
    ) as opened:
        yield opened


async def open_as(app: ToolServer, token: str) -> pb.OpenWorkspaceResponse:
    request = pb.OpenWorkspaceRequest(
        repository=common_pb2.Repository(url=str(app.repo)), role="dev"
    )
    opened: pb.OpenWorkspaceResponse = await app.rpc("OpenWorkspace", request, token)
    return opened


async def test_a_tenant_cannot_access_another_tenants_data(app: ToolServer, site: Site) -> None:
    ours, theirs = await open_as(app, TOKEN), await open_as(app, OTHER)
    await app.call(ours, "files.write", "r-1", path="ours.txt", content="our secret\n")
    page = await app.call(ours, "web.fetch", "r-2", url=f"{site.url}/page")
    assert (page.status, site.request_counts["GET /page"]) == ("success", 1)
    # Files: they have another checkout, and ours is closed to them, with our token and with theirs.
    missing = await app.call(theirs, "files.read", "r-1", OTHER, path="ours.txt")
    assert missing.status == "error"
    for token, capability in (
        (OTHER, ours.capability_token),
        (OTHER, theirs.capability_token),
        (TOKEN, theirs.capability_token),
    ):
        crossed = pb.OpenWorkspaceResponse(
            workspace_id=ours.workspace_id, capability_token=capability
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.call(crossed, "files.read", "r-9", token, path="ours.txt")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    # Results: request ids belong to a caller.
    assert "our secret" not in str(missing)
    assert (await app.call(theirs, "files.list", "r-2", OTHER)).status == "success"
    # The cache: ours does not answer their requests.
    second_page = await app.call(ours, "web.fetch", "r-3", url=f"{site.url}/page")
    fresh = await app.call(theirs, "web.fetch", "r-3", OTHER, url=f"{site.url}/page")
    assert (second_page.output["text"], site.request_counts["GET /page"]) == (
        page.output["text"],
        2,
    )
    assert fresh.output["text"] != page.output["text"]
    # Tools that were disabled for them are unavailable to them, and available to us.
    await Switches(app.bus.bucket(SWITCHES)).switch(
        "elsewhere", "files.read", enabled=False, actor="ann"
    )
    async with asyncio.timeout(60):
        while (
            disabled := await app.call(
                theirs, "files.read", f"t-{asyncio.get_running_loop().time()}", OTHER, path="a.txt"
            )
        ).status != "invalid":
            await asyncio.sleep(0.05)
    assert "there is no tool 'files.read'" in disabled.error
    steps = [{"id": "s", "tool": "files.read", "arguments": {"path": "a.txt"}}]
    with pytest.raises(grpc.aio.AioRpcError, match="step s: there is no tool"):
        _ = [event async for event in app.flowing(theirs, {"steps": steps}, token=OTHER)]
    assert (await app.call(ours, "files.read", "r-4", path="a.txt")).status == "success"
    assert verify_all(app.data_dir).ok


async def test_five_failures_open_the_circuit_breaker(app: ToolServer, site: Site) -> None:
    opened = await app.open()
    statuses: list[str] = []

    async def get() -> str:
        result = await app.call(opened, "http.get", f"g-{len(statuses)}", url=f"{site.url}/x")
        statuses.append(result.status)
        return str(result.status)

    site.broken = True
    for _ in range(4):
        await get()
    site.pause = 60.0  # a timeout is a failure like any other
    await get()
    assert statuses == ["error", "error", "error", "error", "timeout"]
    count_before = site.request_counts.total()
    assert (await get(), site.request_counts.total()) == ("circuit_open", count_before)


async def test_a_workflow_waits_for_an_operators_approval(app: ToolServer, site: Site) -> None:
    opened = await app.open()
    delete = {"id": "delete", "tool": "http.delete", "arguments": {"url": f"{site.url}/thing"}}
    note = {
        "id": "note",
        "tool": "files.write",
        "arguments": {"path": "n", "content": "it said ${steps.delete.output.status}"},
    }

    async def run(name: str, *, allow: bool) -> list[pb.WorkflowEvent]:
        events: list[pb.WorkflowEvent] = []
        steps = [{**delete, "arguments": {"url": f"{site.url}/{name}"}}, note]
        async for event in app.flowing(opened, {"id": name, "steps": steps}):
            events.append(event)
            if event.state == "parked":
                request = pb.ResolveParkedRequest(
                    request_id=f"{name}/delete/1", allow=allow, reason="no"
                )
                await app.rpc("ResolveParked", request)
        return events

    yes = await run("yes", allow=True)
    assert [event.state for event in yes] == [
        "started",
        "started",
        "parked",
        "succeeded",
        "started",
        "succeeded",
        "succeeded",
    ]
    no = await run("no", allow=False)
    assert (
        no[-1].state,
        site.request_counts["DELETE /no"],
        site.request_counts["DELETE /yes"],
    ) == ("failed", 0, 1)
    assert "an operator refused it: no" in str([event.error for event in no])
    assert app.file(opened.workspace_id, "n") == "it said 200"
    [approved] = verify_all(app.data_dir).approved
    assert (approved.request_id, approved.tool) == ("yes/delete/1", "http.delete")
