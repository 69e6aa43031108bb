"""The services for external callers, and workflows of commands: in the process that serves this
data directory, or in this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from moothall.agents.admission import BUCKET as SESSIONS
from moothall.agents.admission import AgentSessions
from moothall.agents.service import AgentTasks
from moothall.app.bus import Bus, bus_url, hold_or_find, open_bus
from moothall.app.gateway_rules import audit_log, open_rules
from moothall.app.repositories import trusted_repositories
from moothall.app.workspaces import NotifyingWorkspaces, open_workspace_services
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.keys import keys_of
from moothall.authorization.limits import gateway_limits
from moothall.authorization.rules import Rules
from moothall.concurrency import run_in_background
from moothall.config import Settings, secret_values
from moothall.domain.event import Recorded
from moothall.domain.ids import LOCAL
from moothall.domain.task import RepositoryRef
from moothall.ports import Deliberations
from moothall.repositories.sources import create_repository
from moothall.tool_sessions.bus_api import Requests
from moothall.tool_sessions.executions import Executions
from moothall.tool_sessions.manager import ToolSessions
from moothall.workflows.plan import document_digest
from moothall.workflows.record import WorkflowLog
from moothall.workflows.runner import BUCKET, WorkflowEntry, Workflows, entries

WRITER = "serve"


@asynccontextmanager
async def tool_service(
    settings: Settings, bus: Bus, rules: Rules, writer: str = WRITER
) -> AsyncIterator[ToolSessions]:
    """Answer requests on the bus, and yield the tool sessions for the other APIs. At the end every
    workspace is closed. `writer` names this process in the audit.
    """
    async with AsyncExitStack() as stack:
        audit = await stack.enter_async_context(
            audit_log(settings, bus, keys_of(settings.guard, settings.data_dir), writer)
        )
        services = await stack.enter_async_context(open_workspace_services(settings))
        gateway = ToolGateway(
            audit, bus.publish, rules, source="executor", limits=gateway_limits(settings.guard)
        )
        workspaces = NotifyingWorkspaces(services.workspaces, rules.close_workspace)
        sessions = await stack.enter_async_context(
            ToolSessions(
                gateway,
                rules.tokens,
                workspaces,
                services.repositories,
                run_code=services.run_code,
            )
        )
        if rules.parking is not None:
            rules.parking.on_resolved(sessions.heed_resolution)
        await stack.enter_async_context(
            run_in_background(Requests(bus, sessions, audit).run(), "tools")
        )
        yield sessions


def agent_service(
    settings: Settings, bus: Bus, deliberations: Deliberations, sessions: ToolSessions
) -> AgentTasks:
    """Return the service for other orchestrators."""
    repositories = trusted_repositories(settings)
    folder = settings.data_dir / "blank"
    lock = asyncio.Lock()

    async def register_blank(tenant: str) -> RepositoryRef:
        async with lock:
            if not (folder / ".git").exists():
                await create_repository(folder, {}, "Nothing yet")
        return RepositoryRef(
            id=(await repositories.register(str(folder), tenant=tenant, push="none")).id
        )

    return AgentTasks(
        deliberations,
        sessions,
        AgentSessions(bus.bucket(SESSIONS), sessions, register_blank),
        settings.agents,
        parallelism=settings.tools.parallelism,
        memory_mb=settings.sandbox.memory_bytes // 1_000_000,
        deliberation_seconds=settings.limits.deliberation_seconds,
    )


def execution_service(sessions: ToolSessions) -> Executions | None:
    """Return the service that runs callers' code; None without a code runner."""
    return Executions(sessions, sessions.run_code) if sessions.run_code is not None else None


@asynccontextmanager
async def workflow_service(
    bus: Bus, sessions: ToolSessions, *, resume: bool = True
) -> AsyncIterator[Workflows]:
    """Run workflows in the workspaces of tool sessions. `resume`: continue the workflows of ended
    processes at once.
    """
    async with Workflows(sessions, sessions.gateway, bus, bus.bucket(BUCKET)) as workflows:
        if resume:
            await workflows.resume()
        yield workflows


ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkflowRequest:
    """A workflow's document with its id, and its workspace. `seconds` is how long the workspace
    stays open at most.
    """

    document: Mapping[str, Any]
    repository: RepositoryRef
    role: str
    seconds: int


async def run_workflow(
    settings: Settings, request: WorkflowRequest, report_progress: ReportProgress
) -> AsyncGenerator[Recorded, None]:
    """Yield the events of a workflow to its end. An interrupted workflow with this id continues
    where it was, in its own workspace.

    Raises what `ToolSessions.open` and `Workflows.run` raise, or `Permanent` with the message of
    the serving process.
    """
    async with AsyncExitStack() as stack:
        if (address := await hold_or_find(settings.data_dir, report_progress, stack)) is not None:
            bus = await stack.enter_async_context(open_bus(settings.bus, address.bus_url))
            if (entry := await _find_started(bus, request)) is not None:
                events = _follow_workflow(bus, entry.session.workspace, request)
            else:
                events = _follow_workflow(
                    bus, await _start_at_server(settings, address.grpc_port, request), request
                )
        else:
            events = await _run_here(settings, request, report_progress, stack)
        await stack.enter_async_context(aclosing(events))
        async for recorded in events:
            yield recorded


async def _run_here(
    settings: Settings,
    request: WorkflowRequest,
    report_progress: ReportProgress,
    stack: AsyncExitStack,
) -> AsyncGenerator[Recorded, None]:
    """Start the workflow in this process, or continue it."""
    url = await stack.enter_async_context(bus_url(settings.bus, settings.data_dir))
    bus = await stack.enter_async_context(
        open_bus(settings.bus, url, secrets=secret_values(settings))
    )
    rules = await stack.enter_async_context(open_rules(settings, bus))
    sessions: ToolSessions = await stack.enter_async_context(tool_service(settings, bus, rules))
    workflows: Workflows = await stack.enter_async_context(
        workflow_service(bus, sessions, resume=False)
    )
    if (entry := await _find_started(bus, request)) is not None:
        if entry.running:
            report_progress(
                f"workflow {entry.workflow_id} continues where it was, in {entry.session.workspace}"
            )
            await workflows.resume(entry.workflow_id)
        return _follow_workflow(bus, entry.session.workspace, request)
    opened = await sessions.open(LOCAL, request.repository, request.role, request.seconds)
    return workflows.run(LOCAL, opened.workspace, opened.token, request.document)


async def _find_started(bus: Bus, request: WorkflowRequest) -> WorkflowEntry | None:
    """Return the workflow with this id, if it was started."""
    own_entries = (
        entry for entry in await entries(bus.bucket(BUCKET)) if entry.session.tenant == LOCAL.tenant
    )
    return next(
        (entry for entry in own_entries if entry.workflow_id == request.document["id"]), None
    )


async def _start_at_server(settings: Settings, port: int, request: WorkflowRequest) -> str:
    """Start the workflow in the serving process and return its workspace. It continues there
    without a listener.
    """
    from moothall.api.kernel_client import open_local_channel
    from moothall.pb.moothall.v1 import common_pb2
    from moothall.pb.tool.v1 import tool_pb2, tool_pb2_grpc

    async with open_local_channel(settings.grpc, settings.data_dir, port) as (channel, metadata):
        stub: Any = tool_pb2_grpc.ToolServiceStub(channel)
        repository = request.repository
        open_request = tool_pb2.OpenWorkspaceRequest(
            repository=common_pb2.Repository(
                id=repository.id, url=repository.url, ref=repository.ref
            ),
            role=request.role,
            ttl_seconds=request.seconds,
        )
        opened = await stub.OpenWorkspace(open_request, metadata=metadata)
        run_request = tool_pb2.RunWorkflowRequest(
            workspace_id=opened.workspace_id, capability_token=opened.capability_token
        )
        run_request.workflow.update(request.document)
        stream = stub.RunWorkflow(run_request, metadata=metadata)
        await stream.read()  # the start is in the log now
        stream.cancel()
    return str(opened.workspace_id)


def _follow_workflow(
    bus: Bus, workspace: str, request: WorkflowRequest
) -> AsyncGenerator[Recorded, None]:
    workflow_log = WorkflowLog(bus, workspace, LOCAL.tenant, str(request.document["id"]))
    return workflow_log.follow(document_digest(request.document), 0)
