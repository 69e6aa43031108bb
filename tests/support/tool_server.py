"""A tool service without Ray: a real bus, real sandboxes, a real gRPC server, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moothall.app.gateway_rules import open_rules
from moothall.app.tool_sessions import execution_service, tool_service, workflow_service
from moothall.authorization.tokens import narrow, request_digest
from moothall.config import BusSettings
from moothall.domain.event import Channel, EventType, new_event
from moothall.domain.tool import ToolCall
from moothall.events import codec
from moothall.events.delivery import BusLimits
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from moothall.events.registry import subject
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.runner.v1 import runner_pb2, runner_pb2_grpc
from moothall.pb.tool.v1 import tool_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2_grpc as pb_grpc
from moothall.settings import load_settings
from moothall.tool_sessions.manager import ToolSessions
from moothall.workflows.runner import Workflows
from support.callers import TOKEN, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations
from support.repos import make_repo
from support.tool_gateway import in_seconds


@dataclass
class ToolServer:
    """A running tool service with its client."""

    bus: JetStreamBus
    session_manager: ToolSessions
    workflows: Workflows
    stub: Any
    repo: Path
    data_dir: Path
    runner: Any = None

    async def execute(
        self,
        opened: pb.OpenWorkspaceResponse,
        execution_id: str,
        code: str,
        token: str = TOKEN,
        **fields: Any,
    ) -> runner_pb2.ExecuteResponse:
        """Run code in an open workspace. `fields` belong to the request; `inputs` is a mapping."""
        request = runner_pb2.ExecuteRequest(
            task_id=opened.workspace_id,
            execution_id=execution_id,
            code=code,
            capability_token=opened.capability_token,
            **{name: value for name, value in fields.items() if name != "inputs"},
        )
        request.inputs.update(fields.get("inputs", {}))
        answered: runner_pb2.ExecuteResponse = await self.runner.Execute(
            request, metadata=[("authorization", f"Bearer {token}")], timeout=120
        )
        return answered

    async def rpc(self, method: str, request: Any, token: str = TOKEN) -> Any:
        """Call a method."""
        return await getattr(self.stub, method)(
            request, metadata=[("authorization", f"Bearer {token}")], timeout=120
        )

    async def open(self, **fields: Any) -> pb.OpenWorkspaceResponse:
        """Open a workspace for the role dev."""
        request = pb.OpenWorkspaceRequest(
            repository=common_pb2.Repository(url=str(self.repo)), role="DEV", **fields
        )
        opened: pb.OpenWorkspaceResponse = await self.rpc("OpenWorkspace", request)
        return opened

    async def call(
        self,
        opened: pb.OpenWorkspaceResponse,
        tool: str,
        request_id: str,
        token: str = TOKEN,
        **arguments: Any,
    ) -> pb.CallToolResponse:
        """Call a tool."""
        request = pb.CallToolRequest(
            request_id=request_id,
            workspace_id=opened.workspace_id,
            capability_token=opened.capability_token,
            tool=tool,
        )
        request.arguments.update(arguments)
        answered: pb.CallToolResponse = await self.rpc("CallTool", request, token)
        return answered

    async def send(self, workspace: str, data: Mapping[str, Any], ordinal: str = "") -> None:
        """Send as another program would: our own publishers scrub what looks like a token."""
        event = new_event(
            EventType.TOOL_REQUESTED,
            workspace,
            data,
            ordinal=ordinal or str(data.get("request_id")),
        )
        raw = codec.encode(
            replace(event, time="2026-01-01T00:00:00.000+00:00"), codec.dump_json(data)
        )
        await self.bus.put_raw(subject(Channel.CALLS.of(workspace)), raw, message_id=event.id)

    def request(
        self, opened: pb.OpenWorkspaceResponse, tool: str, request_id: str, **arguments: Any
    ) -> dict[str, Any]:
        """Return the payload of a request on the bus, with a token bound to it."""
        digest = request_digest(ToolCall(request_id, tool, arguments, in_seconds(60)))
        token = narrow(opened.capability_token, seconds=120, request=digest)
        return {
            "request_id": request_id,
            "workspace": opened.workspace_id,
            "tool": tool,
            "arguments": arguments,
            "capability_token": token,
            "requirements": {"network_access": True},  # an ignored claim
        }

    async def results(self, workspace: str, count: int) -> list[Mapping[str, Any]]:
        """Wait for this many results, and a moment longer for an excess one."""
        payloads: list[Mapping[str, Any]] = []
        async with asyncio.timeout(240):
            while len(payloads) < count:
                await asyncio.sleep(0.1)
                payloads = [
                    item.event.data
                    async for item in self.bus.replay((Channel.TOOLS.of(workspace),))
                ]
        await asyncio.sleep(0.5)
        return [item.event.data async for item in self.bus.replay((Channel.TOOLS.of(workspace),))]

    async def flow(
        self, opened: pb.OpenWorkspaceResponse, document: Mapping[str, Any], after_seq: int = 0
    ) -> list[pb.WorkflowEvent]:
        """Run a workflow to its end and return its events."""
        return [event async for event in self.flowing(opened, document, after_seq)]

    def flowing(
        self,
        opened: pb.OpenWorkspaceResponse,
        document: Mapping[str, Any],
        after_seq: int = 0,
        token: str = TOKEN,
    ) -> Any:
        """Call RunWorkflow."""
        request = pb.RunWorkflowRequest(
            workspace_id=opened.workspace_id,
            capability_token=opened.capability_token,
            after_seq=after_seq,
        )
        request.workflow.update(document)
        return self.stub.RunWorkflow(
            request, metadata=[("authorization", f"Bearer {token}")], timeout=240
        )

    def file(self, workspace: str, path: str) -> str:
        """Return the current content of a file that a tool session has changed, seen from the host;
        empty if it does not exist.
        """
        persistent: Any = self.session_manager._sessions[workspace].seat.workspace
        host_path: Path = persistent._opened.result()._executor.upper / path
        return host_path.read_text(encoding="utf-8") if host_path.exists() else ""

    def pid(self, workspace: str) -> int:
        """Return the process id of the sandbox of a tool session's executor."""
        open_workspace: Any = self.session_manager._sessions[workspace].seat.workspace
        pid: int = open_workspace._opened.result().pid
        return pid


@asynccontextmanager
async def open_tool_server(
    folder: Path,
    files: Mapping[str, str],
    *,
    rego: str = "",
    roles: str = "",
    at: BusSettings | None = None,
    **settings: Any,
) -> AsyncIterator[ToolServer]:
    """Serve a repository of these files. `rego` and `roles` replace the shipped policies; `at` is
    the URL of another bus.
    """
    if not (folder / "repo").exists():
        make_repo(folder / "repo", files)
    (folder / "policies").mkdir(exist_ok=True)
    for name, text in (("tools.rego", rego), ("roles.yaml", roles)):
        if text:
            (folder / "policies" / name).write_text(text, encoding="utf-8")
    guard = {"policies": str(folder / "policies"), **settings.pop("guard", {})}
    loaded = load_settings(
        guard=guard,
        data_dir=folder / "data",
        workspace={"allowed_roots": [str(folder)], "warm": 0},
        bus=BusSettings() if at is None else at,
        **settings,
    )
    async with AsyncExitStack() as stack:
        url = loaded.bus.url or await stack.enter_async_context(
            embedded_server(loaded.bus, loaded.data_dir / "bus")
        )
        bus = await stack.enter_async_context(
            open_bus(loaded.bus, str(url), limits=BusLimits(retry_seconds=0.05))
        )
        rules = await stack.enter_async_context(open_rules(loaded, bus))
        session_manager = await stack.enter_async_context(tool_service(loaded, bus, rules))
        workflows = await stack.enter_async_context(workflow_service(bus, session_manager))
        deliberations = MemoryDeliberations()
        dependencies = with_parts(
            api_dependencies(deliberations),
            sessions=session_manager,
            approvals=rules.parking,
            workflows=workflows,
            executions=execution_service(session_manager),
        )
        served = await stack.enter_async_context(serving(deliberations, dependencies))
        stub: Any = pb_grpc.ToolServiceStub(served.channel)
        runner: Any = runner_pb2_grpc.SecureRunnerStub(served.channel)
        yield ToolServer(
            bus, session_manager, workflows, stub, folder / "repo", loaded.data_dir, runner
        )
