"""The tool API on the bus: it receives calls to a workspace and publishes one `tool.finished`
for each. Workspaces of tasks for callers.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from moothall.authorization.audit import AuditEntry, AuditLog
from moothall.domain.codec import describe_errors, dump, load
from moothall.domain.event import Channel, EventType, Recorded
from moothall.domain.ids import Principal, TaskId, TaskKey, check_key, check_task_id, own_id
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import AlreadyExists, InvalidRequest, NotFound, Permanent, Refused
from moothall.ports import Bus, Deliberations
from moothall.telemetry import get_logger
from moothall.telemetry.tracing import write
from moothall.tool_sessions.manager import SEAT, Find, PendingWorkspace, ToolSessions

# Workspaces of tasks for callers. They are opened on the task's own commit at the first call.


def of_tasks(deliberations: Deliberations) -> Find:
    """Return a function that finds the workspace named after a task, with the task's repository and
    role.
    """

    async def find(workspace: str, principal: Principal) -> PendingWorkspace | None:
        try:
            task_id = check_task_id(own_id(workspace, principal.tenant))
            deliberation = await _request_of(deliberations, task_id, principal)
            outcome = await deliberations.result(task_id, principal)
        except (NotFound, InvalidRequest):
            return None
        if deliberation.principal != principal.name:
            return None
        if outcome.status is DeliberationStatus.CANCELLED:
            raise Refused(f"task {task_id} was cancelled: its tool calls no longer run")
        if deliberation.repository is None or deliberation.base_sha is None:
            raise InvalidRequest(f"task {task_id} has no repository, so it has no workspace")
        # Prefer the registry's id, because a URL would be fetched and checked again.
        url = "" if deliberation.repository.id else deliberation.repository.url
        return PendingWorkspace(
            RepositoryRef(id=deliberation.repository.id, url=url, ref=deliberation.base_sha),
            deliberation.role,
        )

    return find


async def _request_of(
    deliberations: Deliberations, task_id: TaskId, principal: Principal
) -> Deliberation:
    """Return a deliberation as it was requested. Raises `NotFound`."""
    async with aclosing(deliberations.watch(task_id, 0, principal)) as events:
        async for recorded in events:
            if recorded.event.type is EventType.DELIBERATION_REQUESTED:
                return load(Deliberation, recorded.event.data)
    raise NotFound(f"no task {task_id!r}")


# The tool API on the bus: it receives calls to a workspace and publishes one `tool.finished` for
# each.


log = get_logger(__name__)

DURABLE = "tools"
_CONCURRENCY = 128
_DEFAULT_SECONDS = 300.0  # of a request without a deadline
_UNKNOWN = "unknown"  # tenant and principal of a request without a valid token


class _Request(BaseModel):
    """The required data of a request. Additional data, such as requirements, is ignored; the
    catalogue has them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    request_id: str = Field(min_length=1, max_length=200)
    workspace: str
    tool: str = Field(max_length=100)
    arguments: dict[str, Any] = {}
    capability_token: str = Field(max_length=20_000)
    deadline: AwareDatetime | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """Consumer of requests. It answers each one once, even if it is delivered again."""

    bus: Bus
    tool_sessions: ToolSessions
    audit: AuditLog

    async def run(self) -> None:
        """Consume requests until cancelled."""
        await self.bus.consume(DURABLE, self.handle, concurrency=_CONCURRENCY)

    async def handle(self, recorded: Recorded) -> None:
        """Answer one request. An invalid request with an id gets a result too, and goes to the dead
        letters.
        """
        workspace = recorded.extra.get("about", "")
        try:
            request = _read_request(recorded, workspace)
        except InvalidRequest as error:
            data = recorded.event.data
            await self._answer(
                workspace,
                str(data.get("request_id", ""))[:200],
                str(data.get("tool", "")),
                ToolStatus.INVALID,
                error,
            )
            raise
        if int(recorded.extra.get("deliveries", "1")) > 1 and await self._is_answered(request):
            return
        deadline = request.deadline or datetime.now(UTC) + timedelta(seconds=_DEFAULT_SECONDS)
        call = ToolCall(request.request_id, request.tool, request.arguments, deadline)
        try:
            await self.tool_sessions.call(
                None, request.workspace, request.capability_token, call, bound=True
            )
        except Refused as error:
            await self._answer(
                workspace, request.request_id, request.tool, ToolStatus.BLOCKED, error
            )
        except NotFound as error:
            # The process that had it open is gone. Answer the request unless that process did.
            if not await self._is_answered(request):
                await self._answer(
                    workspace, request.request_id, request.tool, await self._end_of(request), error
                )
        except AlreadyExists as error:
            log.warning(
                "a request id was used for different requests",
                workspace=workspace,
                reason=error.message,
            )
            raise

    async def _is_answered(self, request: _Request) -> bool:
        return await self._has_event(request, EventType.TOOL_FINISHED)

    async def _end_of(self, request: _Request) -> ToolStatus:
        """Return the status of a request whose process is gone. An effect beyond the workspace that
        was started and not finished may have happened.
        """
        has_begun = await self._has_event(request, EventType.TOOL_STARTED)
        return ToolStatus.OUTCOME_UNKNOWN if has_begun else ToolStatus.ERROR

    async def _has_event(self, request: _Request, kind: EventType) -> bool:
        async for recorded in self.bus.replay((Channel.TOOLS.of(request.workspace),)):
            if (
                recorded.event.type == kind
                and recorded.event.data.get("request_id") == request.request_id
            ):
                return True
        return False

    async def _answer(
        self, workspace: str, request_id: str, tool: str, status: ToolStatus, error: Permanent
    ) -> None:
        """Publish the result of a request that never reached the gateway."""
        entry = AuditEntry(_UNKNOWN, _UNKNOWN, TaskKey(workspace), SEAT, request_id, tool, "")
        audit_id = await self.audit.append(entry)
        result = ToolResult(
            request_id, tool[:100], status, error=error.message[:2000], audit_id=audit_id
        )
        await self.audit.append(replace(entry, phase="finish", status=status))
        event = write(
            EventType.TOOL_FINISHED,
            workspace,
            {**dump(result), "task_id": workspace, "seat": SEAT, "workspace": workspace},
            ordinal=request_id,
            source="executor",
            correlationid=workspace,
        )
        await self.bus.publish(event)


def _read_request(recorded: Recorded, workspace: str) -> _Request:
    if recorded.event.type != EventType.TOOL_REQUESTED:
        raise InvalidRequest(
            f"{recorded.event.type} is not a tool request; send {EventType.TOOL_REQUESTED}"
        )
    try:
        request = _Request.model_validate(dict(recorded.event.data))
    except ValidationError as error:
        raise InvalidRequest(f"this is not a tool request: {describe_errors(error)}") from error
    if check_key(request.workspace, "workspace") != workspace:
        raise InvalidRequest(
            f"the request names workspace {request.workspace!r}, but was sent to {workspace!r}"
        )
    return request
