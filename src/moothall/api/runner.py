"""SecureRunner: code of external callers. Who calls comes from the call's token, never from a
field.
"""

from __future__ import annotations

from typing import Any

from moothall.api import protobuf
from moothall.api.identity import caller
from moothall.pb.runner.v1 import runner_pb2 as pb
from moothall.pb.runner.v1 import runner_pb2_grpc as pb_grpc
from moothall.tool_sessions.executions import ExecutionOrder, Executions


class SecureRunner(pb_grpc.SecureRunnerServicer):
    """The gRPC door of the runner."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse:
        """Run code once; it stops when the call does."""
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
        ran = execution.run
        return pb.ExecuteResponse(
            status=str(ran.status),
            result=protobuf.value(ran.value),
            stdout=ran.printed,
            error=ran.error,
            tool_call_count=execution.tool_calls,
            usage=protobuf.to_message(
                pb.RunUsage, ran.usage, duration_ms=ran.duration_ms, tier=ran.tier, reason=ran.why
            ),
        )
