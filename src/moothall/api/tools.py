"""The services for tools and code of external callers: ToolService, SecureRunner, and the rigor
score of WorkspaceService. The caller is identified by the call's token, never by the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import json_format, timestamp_pb2

from moothall.api import protobuf
from moothall.api.identity import caller
from moothall.authorization.approvals import ApprovalQueue, Parked, refuse_unless_operator
from moothall.domain.codec import load
from moothall.domain.event import Recorded
from moothall.domain.ids import own_id
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult
from moothall.errors import InvalidRequest, NotFound
from moothall.pb.runner.v1 import runner_pb2 as runner_pb
from moothall.pb.runner.v1 import runner_pb2_grpc as runner_pb_grpc
from moothall.pb.tool.v1 import tool_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2_grpc as pb_grpc
from moothall.pb.workspace.v1 import workspace_pb2 as workspace_pb
from moothall.pb.workspace.v1 import workspace_pb2_grpc as workspace_pb_grpc
from moothall.stories.rigor import JobReport, rate
from moothall.tool_sessions.executions import ExecutionOrder, Executions
from moothall.tool_sessions.manager import OpenedSession, ToolSessions
from moothall.workflows.runner import Workflows

# ToolService: tools for external callers. The caller is identified by the call's token, never by a
# field.


_MAX_DURATION = timedelta(hours=1)


def external_call(
    request_id: str, tool: str, arguments: dict[str, Any], deadline: datetime | None = None
) -> ToolCall:
    """Return the tool call of an external caller. Without a deadline, `_MAX_DURATION` applies; the
    gateway's own limits are shorter.
    """
    return ToolCall(request_id, tool, arguments, deadline or datetime.now(UTC) + _MAX_DURATION)


class Tools:
    """The operations on tools for external callers, shared by gRPC and HTTP. The caller is
    `identity.caller`.
    """

    def __init__(
        self,
        sessions: ToolSessions,
        approvals: ApprovalQueue | None,
        workflows: Workflows | None = None,
    ) -> None:
        self._sessions = sessions
        self._approvals = approvals
        self._workflows = workflows

    async def open(
        self, repository: RepositoryRef | None, role: str, ttl_seconds: int, persona: str
    ) -> OpenedSession:
        """Open a workspace. Returns its id, capability token and expiry."""
        if repository is None or not (repository.id or repository.url):
            problem = "missing" if repository is None else "empty"
            raise InvalidRequest(
                f"repository is {problem}: give the id of a registered one, a path or a URL"
            )
        return await self._sessions.open(caller(), repository, role, ttl_seconds, persona)

    async def close(self, workspace: str) -> None:
        """Close a workspace and stop what runs in it."""
        await self._sessions.close(caller(), workspace)

    async def call(self, workspace: str, token: str, call: ToolCall) -> ToolResult:
        """Run one tool. It stops when the call is cancelled."""
        return await self._sessions.call(caller(), workspace, token, call)

    def run_workflow(
        self, workspace: str, token: str, workflow: dict[str, Any], after_seq: int
    ) -> AsyncGenerator[Recorded, None]:
        """Run a workflow or join a running one. It continues if the caller disconnects. Raises
        `NotFound` if this server runs no workflows.
        """
        if self._workflows is None:
            raise NotFound("this server runs no workflows")
        return self._workflows.run(caller(), workspace, token, workflow, after_seq)

    def check_operator(self) -> None:
        """Raise `Refused` unless an operator calls."""
        refuse_unless_operator(caller())

    def list_parked(self) -> Sequence[Parked]:
        """Return the parked requests of the caller's tenant. Raises `Refused` unless an operator
        calls.
        """
        self.check_operator()
        tenant = caller().tenant
        waiting = self._approvals.list_waiting(tenant) if self._approvals else ()
        return [
            replace(
                item, workspace=own_id(item.workspace, tenant), task_id=own_id(item.task_id, tenant)
            )
            for item in waiting
        ]

    async def resolve(self, request_id: str, *, allow: bool, reason: str) -> Parked:
        """Allow or deny a parked request. Raises `Refused` unless an operator calls, `NotFound`."""
        self.check_operator()
        if self._approvals is None:
            raise NotFound(f"no parked request {request_id[:80]!r}")
        principal = caller()
        return await self._approvals.resolve(
            principal.tenant, request_id, allow=allow, approver=principal.name, comment=reason
        )


class ToolService(pb_grpc.ToolServiceServicer):
    """The gRPC servicer of ToolService."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def OpenWorkspace(
        self, request: pb.OpenWorkspaceRequest, context: Any
    ) -> pb.OpenWorkspaceResponse:
        """Open a workspace and return its capability token."""
        repository = protobuf.read_repository(request.repository)
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
        """Close a workspace."""
        await self._tools.close(request.workspace_id)
        return pb.CloseWorkspaceResponse()

    async def CallTool(self, request: pb.CallToolRequest, context: Any) -> pb.CallToolResponse:
        """Run one tool. It stops when the call is cancelled."""
        call = external_call(
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
        """Run a workflow or join a running one. It continues if the caller disconnects."""
        document = protobuf.struct_data(request.workflow, "workflow")
        async with aclosing(
            self._tools.run_workflow(
                request.workspace_id, request.capability_token, document, request.after_seq
            )
        ) as events:
            async for recorded in events:
                yield _event(recorded)

    async def ListParked(
        self, request: pb.ListParkedRequest, context: Any
    ) -> pb.ListParkedResponse:
        """List the parked requests."""
        return pb.ListParkedResponse(
            parked=[
                protobuf.to_message(pb.ParkedRequest, item, workspace_id=item.workspace)
                for item in self._tools.list_parked()
            ]
        )

    async def ResolveParked(
        self, request: pb.ResolveParkedRequest, context: Any
    ) -> pb.ResolveParkedResponse:
        """Allow or deny a parked request."""
        item = await self._tools.resolve(
            request.request_id, allow=request.allow, reason=request.reason
        )
        return pb.ResolveParkedResponse(state=item.state)


def _event(recorded: Recorded) -> pb.WorkflowEvent:
    event, data = recorded.event, recorded.event.data
    message = pb.WorkflowEvent(
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
        message.result.CopyFrom(
            protobuf.to_message(pb.CallToolResponse, load(ToolResult, data["result"]))
        )
    message.time.FromJsonString(event.time)
    return message


def _deadline(request: pb.CallToolRequest) -> datetime | None:
    if not request.HasField("deadline"):
        return None
    try:
        return request.deadline.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"deadline is not a time: {error}") from error


# SecureRunner: code of external callers. The caller is identified by the call's token, never by a
# field.


class SecureRunner(runner_pb_grpc.SecureRunnerServicer):
    """The gRPC servicer of SecureRunner."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    async def Execute(
        self, request: runner_pb.ExecuteRequest, context: Any
    ) -> runner_pb.ExecuteResponse:
        """Run code once. It stops when the call is cancelled."""
        limits = request.limits
        order = ExecutionOrder(
            workspace=request.task_id,
            execution_id=request.execution_id,
            code=request.code,
            token=request.capability_token,
            inputs=protobuf.struct_data(request.inputs, "inputs"),
            tools=tuple(request.tools),
            timeout_ms=limits.timeout_ms,
            memory_mb=limits.memory_mb,
            tool_calls=limits.max_tool_calls,
        )
        execution = await self._executions.execute(caller(), order)
        code_run = execution.run
        return runner_pb.ExecuteResponse(
            status=str(code_run.status),
            result=protobuf.value(code_run.value),
            stdout=code_run.printed,
            error=code_run.error,
            tool_call_count=execution.tool_calls,
            usage=protobuf.to_message(
                runner_pb.RunUsage,
                code_run.usage,
                duration_ms=code_run.duration_ms,
                tier=code_run.tier,
                reason=code_run.why,
            ),
        )


# WorkspaceService: the rigor score of a finished job's evidence.


_SCORED = ("build", "unit", "static", "e2e")


class Scoring(workspace_pb_grpc.WorkspaceServiceServicer):
    """The gRPC servicer of WorkspaceService."""

    async def ScoreWorkspace(
        self, request: workspace_pb.ScoreWorkspaceRequest, context: Any
    ) -> workspace_pb.ScoreWorkspaceResponse:
        """Score a report."""
        report = request.report
        if report.job_id and request.job_id and report.job_id != request.job_id:
            raise InvalidRequest(
                f"job_id is {request.job_id[:80]!r}, but the report has {report.job_id[:80]!r}"
            )
        parts = {
            name: json_format.MessageToDict(getattr(report, name), preserving_proto_field_name=True)
            for name in _SCORED
            if report.HasField(name)  # type: ignore[arg-type]
        }
        rating = rate(load(JobReport, parts), request.rigor_level)
        return workspace_pb.ScoreWorkspaceResponse(
            score=rating.score,
            rigor=rating.rigor,
            reasons=rating.reasons,
            gating_decision=rating.decision,
        )
