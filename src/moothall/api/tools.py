"""ToolService: tools for external callers. Who calls comes from the call's token, never from a
field.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import timestamp_pb2

from moothall.api import protobuf
from moothall.api.identity import caller
from moothall.authorization.approval_queue import ApprovalQueue, Parked, refuse_unless_operator
from moothall.domain.codec import load
from moothall.domain.event import Recorded
from moothall.domain.ids import own_id
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import InvalidRequest, NotFound
from moothall.pb.tool.v1 import tool_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2_grpc as pb_grpc
from moothall.tool_sessions.manager import OpenedSession, ToolSessions
from moothall.workflows.runner import Workflows

_LONGEST = timedelta(hours=1)


def call_of(
    request_id: str, tool: str, arguments: dict[str, Any], deadline: datetime | None = None
) -> ToolCall:
    """Return a call that somebody outside makes. No deadline: the gate's own limits are nearer than
    this one.
    """
    return ToolCall(request_id, tool, arguments, deadline or datetime.now(UTC) + _LONGEST)


class Tools:
    """What external callers may do with tools: once, behind every door. Each says who calls
    (`identity.caller`).
    """

    def __init__(
        self,
        visits: ToolSessions,
        parking: ApprovalQueue | None,
        workflows: Workflows | None = None,
    ) -> None:
        self._visits = visits
        self._parking = parking
        self._workflows = workflows

    async def open(
        self, repository: RepositoryRef | None, role: str, ttl_seconds: int, persona: str
    ) -> OpenedSession:
        """Open a workspace and hand out its token."""
        if repository is None or not (repository.id or repository.url):
            lacking = "missing" if repository is None else "empty"
            raise InvalidRequest(
                f"repository is {lacking}: give the id of a registered one, a path or a URL"
            )
        return await self._visits.open(caller(), repository, role, ttl_seconds, persona)

    async def close(self, workspace: str) -> None:
        """Close it; what runs in it is stopped."""
        await self._visits.close(caller(), workspace)

    async def call(self, workspace: str, token: str, call: ToolCall) -> ToolResult:
        """Run one tool; it stops when the call does."""
        return await self._visits.call(caller(), workspace, token, call)

    def run(
        self, workspace: str, token: str, workflow: dict[str, Any], after_seq: int
    ) -> AsyncGenerator[Recorded, None]:
        """Run a workflow, or join it; a caller that goes leaves it to itself."""
        if self._workflows is None:
            raise NotFound("this server runs no workflows")
        return self._workflows.run(caller(), workspace, token, workflow, after_seq)

    def check_operator(self) -> None:
        """Raise `Refused` unless an operator calls."""
        refuse_unless_operator(caller())

    def list_parked(self) -> Sequence[Parked]:
        """Return what waits for an operator of the caller's tenant."""
        self.check_operator()
        tenant = caller().tenant
        waiting = self._parking.list_waiting(tenant) if self._parking else ()
        return [
            replace(
                item, workspace=own_id(item.workspace, tenant), task_id=own_id(item.task_id, tenant)
            )
            for item in waiting
        ]

    async def resolve(self, named: str, *, allow: bool, reason: str) -> Parked:
        """Say an operator's word."""
        self.check_operator()
        if self._parking is None:
            raise NotFound(f"no parked request {named[:80]!r}")
        who = caller()
        return await self._parking.resolve(
            who.tenant, named, allow=allow, approver=who.name, comment=reason
        )


class ToolService(pb_grpc.ToolServiceServicer):
    """The gRPC door of the tool service."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def OpenWorkspace(
        self, request: pb.OpenWorkspaceRequest, context: Any
    ) -> pb.OpenWorkspaceResponse:
        """Open a workspace and hand out its token."""
        repository = protobuf.repository_of(request.repository)
        opened = await self._tools.open(
            repository, request.role, request.ttl_seconds, request.persona
        )
        expires = timestamp_pb2.Timestamp()
        expires.FromDatetime(opened.expires)
        return pb.OpenWorkspaceResponse(
            workspace_id=opened.workspace, capability_token=opened.token, expires=expires
        )

    async def CloseWorkspace(
        self, request: pb.CloseWorkspaceRequest, context: Any
    ) -> pb.CloseWorkspaceResponse:
        """Close it."""
        await self._tools.close(request.workspace_id)
        return pb.CloseWorkspaceResponse()

    async def CallTool(self, request: pb.CallToolRequest, context: Any) -> pb.CallToolResponse:
        """Run one tool; it stops when the call does."""
        call = call_of(
            request.request_id,
            request.tool,
            protobuf.struct_data(request.arguments, "arguments"),
            _deadline(request),
        )
        result = await self._tools.call(request.workspace_id, request.capability_token, call)
        return protobuf.to_message(pb.CallToolResponse, result)

    async def RunWorkflow(
        self, request: pb.RunWorkflowRequest, context: Any
    ) -> AsyncIterator[pb.WorkflowEvent]:
        """Run a workflow, or join it; a caller that goes leaves it to itself."""
        document = protobuf.struct_data(request.workflow, "workflow")
        async with aclosing(
            self._tools.run(
                request.workspace_id, request.capability_token, document, request.after_seq
            )
        ) as facts:
            async for recorded in facts:
                yield _event(recorded)

    async def ListParked(
        self, request: pb.ListParkedRequest, context: Any
    ) -> pb.ListParkedResponse:
        """List what waits."""
        return pb.ListParkedResponse(
            parked=[
                protobuf.to_message(pb.ParkedRequest, item, workspace_id=item.workspace)
                for item in self._tools.list_parked()
            ]
        )

    async def ResolveParked(
        self, request: pb.ResolveParkedRequest, context: Any
    ) -> pb.ResolveParkedResponse:
        """Say an operator's word."""
        item = await self._tools.resolve(
            request.request_id, allow=request.allow, reason=request.reason
        )
        return pb.ResolveParkedResponse(state=item.state)


def _event(recorded: Recorded) -> pb.WorkflowEvent:
    event, data = recorded.event, recorded.event.data
    told = pb.WorkflowEvent(
        seq=recorded.seq,
        workflow_id=data["workflow_id"],
        step=data.get("step", ""),
        state=data.get("state", "started"),
        attempt=data.get("attempt", 0),
        compensation=data.get("compensation", False),
        error=data.get("error", ""),
        done=data.get("done", 0),
        steps=data.get("steps", 0),
    )
    if data.get("result"):
        told.result.CopyFrom(
            protobuf.to_message(pb.CallToolResponse, load(ToolResult, data["result"]))
        )
    told.time.FromJsonString(event.time)
    return told


def _deadline(request: pb.CallToolRequest) -> datetime | None:
    if not request.HasField("deadline"):
        return None
    try:
        return request.deadline.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"deadline is no time: {error}") from error
