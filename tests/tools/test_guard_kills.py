"""A serving process killed during an external effect, and the audit as the command line shows
it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_site import counting_site
from test_workflow_kills import kill, serve, until

from command import Command
from moothall.authorization.tokens import narrow, request_digest
from moothall.config import BusSettings
from moothall.domain.event import Channel, EventType, new_event
from moothall.domain.tool import ToolCall
from moothall.events import codec
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.registry import subject
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.tool.v1 import tool_pb2 as pb
from support.repos import make_repo
from support.tool_gateway import in_seconds

pytestmark = pytest.mark.e2e
ROLES = 'roles: {dev: {tools: {"files.*": [read, write], "http.*": [outside]}}}'
REGO = """package moothall.tools
import rego.v1
default decision := {"allow": true}
decision := {"allow": false, "reason": "ask first", "park": true} if input.tool == "files.delete"
"""


def make_command(folder: Path, port: int = 1) -> Command:
    make_repo(folder / "repo", {"a.txt": "A\n"})
    (folder / "policies").mkdir()
    (folder / "policies" / "roles.yaml").write_text(ROLES, encoding="utf-8")
    (folder / "policies" / "tools.rego").write_text(REGO, encoding="utf-8")
    return Command(
        folder / "data",
        "http://127.0.0.1:9/v1",
        extra={
            "MOOTHALL_WORKSPACE__ALLOWED_ROOTS": json.dumps([str(folder)]),
            "MOOTHALL_GUARD__POLICIES": str(folder / "policies"),
            "MOOTHALL_HTTP__ALLOW": json.dumps([f"127.0.0.1:{port}"]),
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "2",
        },
    )


async def open_on(stub: Any, metadata: Any, folder: Path) -> pb.OpenWorkspaceResponse:
    request = pb.OpenWorkspaceRequest(
        repository=common_pb2.Repository(url=str(folder / "repo")), role="dev"
    )
    opened: pb.OpenWorkspaceResponse = await stub.OpenWorkspace(
        request, metadata=metadata, timeout=240
    )
    return opened


def bus_of(command: Command) -> Any:
    serving = json.loads((command.data_dir / "serving.json").read_text(encoding="utf-8"))
    return open_bus(BusSettings(), serving["bus_url"])


async def results(bus: JetStreamBus, workspace: str) -> list[Mapping[str, Any]]:
    events = [item.event async for item in bus.replay((Channel.TOOLS.of(workspace),))]
    return [event.data for event in events if event.type == EventType.TOOL_FINISHED]


async def test_an_external_effect_interrupted_by_a_kill_is_unknown_and_requested_once(
    tmp_path: Path,
) -> None:
    async with counting_site() as site:
        site.pause = 30
        command = make_command(tmp_path, site.port)
        server, stub, metadata = await serve(command)
        opened = await open_on(stub, metadata, tmp_path)
        async with bus_of(command) as bus:
            call = ToolCall(
                "order-1", "http.post", {"url": f"{site.url}/order", "body": "one"}, in_seconds(600)
            )
            data = {
                "request_id": call.request_id,
                "workspace": opened.workspace_id,
                "tool": call.tool,
                "arguments": dict(call.arguments),
                "capability_token": narrow(
                    opened.capability_token, seconds=600, request=request_digest(call)
                ),
            }
            event = replace(
                new_event(EventType.TOOL_REQUESTED, opened.workspace_id, data, ordinal="1"),
                time="2026-01-01T00:00:00Z",
            )
            await bus.put_raw(
                subject(Channel.CALLS.of(opened.workspace_id)),
                codec.encode(event, codec.dump_json(data)),
                message_id=event.id,
            )
            async with asyncio.timeout(120):
                while not site.request_counts:
                    await asyncio.sleep(0.05)
            # A concurrent workflow in another workspace is interrupted at the same place.
            other_workspace = await open_on(stub, metadata, tmp_path)
            flow = pb.RunWorkflowRequest(
                workspace_id=other_workspace.workspace_id,
                capability_token=other_workspace.capability_token,
            )
            step: Any = {
                "id": "order",
                "tool": "http.post",
                "arguments": {"url": f"{site.url}/flow", "body": "two"},
            }
            flow.workflow.update({"id": "orders", "steps": [step]})
            await until(stub.RunWorkflow(flow, metadata=metadata, timeout=240), "order", "started")
            async with asyncio.timeout(120):
                while site.request_counts["POST /flow"] == 0:
                    await asyncio.sleep(0.05)
            await kill(server)
        server, stub, metadata = await serve(command)
        try:
            events = await until(
                stub.RunWorkflow(flow, metadata=metadata, timeout=240), "", "failed"
            )
            assert [event.state for event in events] == ["started", "started", "unknown", "failed"]
            async with bus_of(command) as bus, asyncio.timeout(120):
                while not await results(bus, opened.workspace_id):
                    await asyncio.sleep(0.1)
                await asyncio.sleep(3)  # waits for an excess one
                [result] = await results(bus, opened.workspace_id)
            assert (result["request_id"], result["status"]) == ("order-1", "outcome_unknown")
            assert dict(site.request_counts) == {"POST /order": 1, "POST /flow": 1}
        finally:
            server.terminate()
            await server.wait()
        verified = await command("audit", "verify")
        assert (verified.code, "2 calls whose end is not recorded: whole" in verified.out) == (
            0,
            True,
        ), verified.out


async def test_the_audit_shows_approvals_external_calls_and_tampering(
    tmp_path: Path,
) -> None:
    command = make_command(tmp_path)
    server, stub, metadata = await serve(command)
    try:
        opened = await open_on(stub, metadata, tmp_path)

        async def call(request_id: str, tool: str, **arguments: Any) -> pb.CallToolResponse:
            request = pb.CallToolRequest(
                request_id=request_id,
                workspace_id=opened.workspace_id,
                capability_token=opened.capability_token,
                tool=tool,
            )
            request.arguments.update(arguments)
            answered: pb.CallToolResponse = await stub.CallTool(
                request, metadata=metadata, timeout=240
            )
            return answered

        assert (await call("r-1", "files.delete", path="a.txt")).status == "parked"
        listed = await command("tools", "requeue", "list", "--json")
        assert [item["request_id"] for item in listed.document] == ["r-1"]
        allowed = await command("tools", "requeue", "allow", "r-1")
        assert allowed.code == 0, allowed.err
        async with asyncio.timeout(120):
            while (result := await call("r-1", "files.delete", path="a.txt")).status == "parked":
                await asyncio.sleep(0.2)
        assert (result.status, result.output["deleted"]) == ("success", True)
        second_requeue = await command("tools", "requeue", "allow", "r-1")
        assert (second_requeue.code, "it was allowed already" in second_requeue.err) == (2, True)
        assert (
            await call("r-2", "files.delete", path="a.txt")
        ).status == "parked"  # the approval was for one call
        for number in range(20):
            assert (await call(f"d-{number}", "git.push", branch="x")).status == "blocked"
        alerts = await command("audit", "alerts", "--json")
        assert [(item["kind"], item["count"], item["tool"]) for item in alerts.document] == [
            ("denials", 20, "git.push")
        ]
        assert "20 denials of" in (await command("audit", "alerts")).out
    finally:
        server.terminate()
        await server.wait()
    verified = await command("audit", "verify", "--approvals")
    assert (verified.code, ", 1 calls approved by operators: whole" in verified.out) == (0, True), (
        verified.out
    )
    assert "files.delete of" in verified.out
    assert "request r-1: approved by" in verified.out
    [chain] = (tmp_path / "data" / "audit" / "local").glob("serve.jsonl")
    text = chain.read_text(encoding="ascii")
    chain.write_text(text.replace('"phase":"approved"', '"phase":"forgiven"', 1), encoding="ascii")
    changed = await command("audit", "verify")
    assert (
        changed.code,
        "a record was changed: its hash is wrong" in changed.out,
        "NOT whole" in changed.out,
    ) == (1, True, True)
