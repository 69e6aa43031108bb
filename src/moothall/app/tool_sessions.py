"""What external callers are answered by, and a workflow for a command: in the process that
serves this data directory, or in this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from moothall.agents.service import AgentTasks
from moothall.agents.sessions import BUCKET as SESSIONS
from moothall.agents.sessions import AgentSessions
from moothall.app.bus import Bus, bus_url, hold_or_find, open_bus
from moothall.app.repositories import NotifyingWorkspaces, open_hands, trusted_repositories
from moothall.app.rules import audit_log, open_rules
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.keys import keys_of
from moothall.authorization.rules import Rules
from moothall.concurrency import beside
from moothall.config import GuardSettings, RunnerSettings, Settings, secret_values
from moothall.domain.event import Recorded
from moothall.domain.identity import LOCAL
from moothall.domain.task import RepositoryRef
from moothall.ports import Deliberations
from moothall.repositories.sample import make_blank_repository
from moothall.tool_sessions.executions import Executions
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.requests import Requests
from moothall.workflows.plan import document_digest
from moothall.workflows.record import WorkflowLog
from moothall.workflows.runner import BUCKET, WorkflowEntry, Workflows, entries

WRITER = "serve"


@asynccontextmanager
async def tool_service(
    settings: Settings, bus: Bus, rules: Rules, writer: str = WRITER
) -> AsyncIterator[ToolSessions]:
    """Answer requests on the bus, and yield what the other doors lead to. At the end every
    workspace is closed. `writer` names this process in the audit.
    """
    async with AsyncExitStack() as stack:
        audit = await stack.enter_async_context(
            audit_log(settings, bus, keys_of(settings.guard, settings.data_dir), writer)
        )
        hands = await stack.enter_async_context(open_hands(settings))
        gate = ToolGateway(settings.guard, audit, bus.publish, rules, source="executor")
        places = NotifyingWorkspaces(hands.workspaces, rules.close_workspace)
        visits = await stack.enter_async_context(
            ToolSessions(
                gate,
                rules.tokens,
                places,
                hands.repositories,
                settings.guard,
                run_code=hands.run_code,
            )
        )
        if rules.parking is not None:
            rules.parking.on_resolved(visits.heed_resolution)
        await stack.enter_async_context(beside(Requests(bus, visits, audit).run(), "tools"))
        yield visits


def agent_service(
    settings: Settings, bus: Bus, deliberations: Deliberations, visits: ToolSessions
) -> AgentTasks:
    """Return what answers other orchestrators."""
    repositories, folder, making = (
        trusted_repositories(settings),
        settings.data_dir / "blank",
        asyncio.Lock(),
    )

    async def blank(tenant: str) -> RepositoryRef:
        async with making:
            if not (folder / ".git").exists():
                await make_blank_repository(folder)
        return RepositoryRef(
            id=(await repositories.register(str(folder), tenant=tenant, push="none")).id
        )

    return AgentTasks(
        deliberations,
        visits,
        AgentSessions(bus.bucket(SESSIONS), visits, blank, settings.agents),
        settings.agents,
        parallelism=settings.tools.parallelism,
        memory_mb=settings.sandbox.memory_bytes // 1_000_000,
        deliberation_seconds=settings.limits.deliberation_seconds,
    )


def execution_service(settings: RunnerSettings, visits: ToolSessions) -> Executions | None:
    """Return what runs the code of visitors; None where `runner.enabled` is off."""
    return Executions(visits, visits.run_code, settings) if visits.run_code is not None else None


@asynccontextmanager
async def workflow_service(
    settings: GuardSettings, bus: Bus, visits: ToolSessions, *, resume: bool = True
) -> AsyncIterator[Workflows]:
    """Run workflows in the workspaces of visitors. `resume`: those that a process left that is gone
    go on at once.
    """
    async with Workflows(visits, visits.gate, bus, bus.bucket(BUCKET), settings) as workflows:
        if resume:
            await workflows.resume()
        yield workflows


ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkflowRequest:
    """A workflow's document with its id, and the workspace that it wants; `seconds` is how long
    that stays open at most.
    """

    document: Mapping[str, Any]
    repository: RepositoryRef
    role: str
    seconds: int


async def run_workflow(
    settings: Settings, asked: WorkflowRequest, report_progress: ReportProgress
) -> AsyncGenerator[Recorded, None]:
    """Yield the facts of a workflow to its end. One of this id that was cut off goes on where it
    was, in its own workspace.

    Raises what `ToolSessions.open` and `Workflows.run` raise, or `Permanent` with the words of the
    process that serves.
    """
    async with AsyncExitStack() as stack:
        if (address := await hold_or_find(settings.data_dir, report_progress, stack)) is not None:
            bus = await stack.enter_async_context(open_bus(settings.bus, address.bus_url))
            if (known := await _find_begun(bus, asked)) is not None:
                facts = _follow(bus, known.visit.workspace, asked)
            else:
                facts = _follow(bus, await _begin_there(settings, address.grpc_port, asked), asked)
        else:
            facts = await _here(settings, asked, report_progress, stack)
        await stack.enter_async_context(aclosing(facts))
        async for recorded in facts:
            yield recorded


async def _here(
    settings: Settings,
    asked: WorkflowRequest,
    report_progress: ReportProgress,
    stack: AsyncExitStack,
) -> AsyncGenerator[Recorded, None]:
    """Begin it in this process, or go on with it."""
    url = await stack.enter_async_context(bus_url(settings.bus, settings.data_dir))
    bus = await stack.enter_async_context(
        open_bus(settings.bus, url, secrets=secret_values(settings))
    )
    rules = await stack.enter_async_context(open_rules(settings, bus))
    visits: ToolSessions = await stack.enter_async_context(tool_service(settings, bus, rules))
    workflows: Workflows = await stack.enter_async_context(
        workflow_service(settings.guard, bus, visits, resume=False)
    )
    if (known := await _find_begun(bus, asked)) is not None:
        if known.running:
            report_progress(
                f"workflow {known.workflow_id} goes on where it was, in {known.visit.workspace}"
            )
            await workflows.resume(known.workflow_id)
        return _follow(bus, known.visit.workspace, asked)
    opened = await visits.open(LOCAL, asked.repository, asked.role, asked.seconds)
    return workflows.run(LOCAL, opened.workspace, opened.token, asked.document)


async def _find_begun(bus: Bus, asked: WorkflowRequest) -> WorkflowEntry | None:
    """Return the workflow of this id, if it was ever begun."""
    found = (
        entry for entry in await entries(bus.bucket(BUCKET)) if entry.visit.tenant == LOCAL.tenant
    )
    return next((entry for entry in found if entry.workflow_id == asked.document["id"]), None)


async def _begin_there(settings: Settings, port: int, asked: WorkflowRequest) -> str:
    """Have the process that serves begin it; return the workspace. It goes on there whoever
    listens.
    """
    from moothall.api.remote import calling
    from moothall.pb.moothall.v1 import common_pb2
    from moothall.pb.tool.v1 import tool_pb2, tool_pb2_grpc

    async with calling(settings.grpc, settings.data_dir, port) as (channel, metadata):
        stub: Any = tool_pb2_grpc.ToolServiceStub(channel)
        named = asked.repository
        wanted = tool_pb2.OpenWorkspaceRequest(
            repository=common_pb2.Repository(id=named.id, url=named.url, ref=named.ref),
            role=asked.role,
            ttl_seconds=asked.seconds,
        )
        opened = await stub.OpenWorkspace(wanted, metadata=metadata)
        request = tool_pb2.RunWorkflowRequest(
            workspace_id=opened.workspace_id, capability_token=opened.capability_token
        )
        request.workflow.update(asked.document)
        stream = stub.RunWorkflow(request, metadata=metadata)
        await stream.read()  # it is on the log
        stream.cancel()
    return str(opened.workspace_id)


def _follow(bus: Bus, workspace: str, asked: WorkflowRequest) -> AsyncGenerator[Recorded, None]:
    chronicle = WorkflowLog(bus, workspace, LOCAL.tenant, str(asked.document["id"]))
    return chronicle.follow(document_digest(asked.document), 0)
