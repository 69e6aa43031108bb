"""AgentKernel: one agent works on a task from a prompt. A task is a deliberation with one seat, and
as durable as any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format, struct_pb2, timestamp_pb2

from moothall.api import protobuf
from moothall.api.identity import caller
from moothall.api.tools import external_call
from moothall.domain.budget import Budget
from moothall.domain.event import Recorded
from moothall.domain.ids import check_task_id
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound
from moothall.pb.kernel.v1 import kernel_pb2 as pb
from moothall.pb.kernel.v1 import kernel_pb2_grpc as pb_grpc
from moothall.ports import Deliberations
from moothall.tool_sessions.manager import ToolSessions

ROLE, PROTOCOL = "dev", "ask"
_EXECUTION_ID_CHARS = 200


class AgentKernel(pb_grpc.AgentKernelServicer):
    """The gRPC servicer of AgentKernel."""

    def __init__(self, deliberations: Deliberations, tool_sessions: ToolSessions) -> None:
        self._deliberations = deliberations
        self._tool_sessions = tool_sessions

    async def CreateTask(
        self, request: pb.CreateTaskRequest, context: Any
    ) -> pb.CreateTaskResponse:
        """Submit a task and return the capability token of its workspace."""
        principal = caller()
        deliberation_request = DeliberationRequest(
            description=request.prompt,
            role=request.agent or ROLE,
            task_id=request.task_id,
            num_agents=1,
            repository=_repository(request.workspace, request.ref),
            protocol=PROTOCOL,
            budget=protobuf.from_message(Budget, request.budget),
            follows=request.follows,
        )
        deliberation = await self._deliberations.submit(deliberation_request, principal)
        token = ""
        if deliberation.base_sha is not None:
            seconds = (deliberation.deadline - datetime.now(UTC)).total_seconds()
            token = self._tool_sessions.token(
                principal, deliberation.task_id, deliberation.role, seconds
            )
        return pb.CreateTaskResponse(task_id=deliberation.own_id, capability_token=token)

    async def StreamTaskEvents(
        self, request: pb.StreamTaskEventsRequest, context: Any
    ) -> AsyncIterator[pb.TaskEvent]:
        """Stream the task's events after a seq. A caller that disconnects only detaches."""
        if request.after_seq < 0:
            raise InvalidRequest(
                f"after_seq is {request.after_seq}; give the last seq that you saw, or 0 for all"
            )
        async for recorded in self._deliberations.watch(
            check_task_id(request.task_id), request.after_seq, caller()
        ):
            yield _event(recorded)

    async def ExecuteTool(
        self, request: pb.ExecuteToolRequest, context: Any
    ) -> pb.ExecuteToolResponse:
        """Run one tool in the task's workspace. It stops when the call is cancelled."""
        if not 0 < len(request.execution_id) <= _EXECUTION_ID_CHARS:
            raise InvalidRequest(
                f"execution_id has {len(request.execution_id)} characters; allowed are 1 to "
                f"{_EXECUTION_ID_CHARS}"
            )
        task_id = check_task_id(request.task_id)
        call = external_call(
            request.execution_id, request.tool, protobuf.struct_data(request.arguments, "arguments")
        )
        result = await self._tool_sessions.call(caller(), task_id, request.capability_token, call)
        output = struct_pb2.Value(struct_value=protobuf.struct(result.output))
        return pb.ExecuteToolResponse(status=result.status.value, output=output, error=result.error)

    async def CancelTask(
        self, request: pb.CancelTaskRequest, context: Any
    ) -> pb.CancelTaskResponse:
        """Cancel a task and close its workspace."""
        principal = caller()
        task_id = check_task_id(request.task_id)
        status = await self._deliberations.cancel(
            task_id, request.reason or "cancelled by its caller", principal
        )
        with suppress(NotFound):  # no tool was ever called
            await self._tool_sessions.close(principal, task_id)
        return pb.CancelTaskResponse(status=status.value)


def _repository(workspace: str, ref: str) -> RepositoryRef | None:
    """Return the repository to work on; None if the call names none."""
    if not workspace:
        if ref:
            raise InvalidRequest("ref needs a workspace, and none is given")
        return None
    return RepositoryRef.from_name(workspace, ref)


def _event(recorded: Recorded) -> pb.TaskEvent:
    event = recorded.event
    message = pb.TaskEvent(
        seq=recorded.position, type=event.type.value, payload=protobuf.struct(event.data)
    )
    timestamp = timestamp_pb2.Timestamp()
    with suppress(ValueError, json_format.Error):  # an event without a time
        timestamp.FromJsonString(event.time or recorded.extra.get("time", ""))
        message.time.CopyFrom(timestamp)
    return message
