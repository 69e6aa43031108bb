"""SecureRunner: code of external callers. The caller is identified by the call's token, never by a
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
    """The gRPC servicer of SecureRunner."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse:
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
        return pb.ExecuteResponse(
            status=str(code_run.status),
            result=protobuf.value(code_run.value),
            stdout=code_run.printed,
            error=code_run.error,
            tool_call_count=execution.tool_calls,
            usage=protobuf.to_message(
                pb.RunUsage,
                code_run.usage,
                duration_ms=code_run.duration_ms,
                tier=code_run.tier,
                reason=code_run.why,
            ),
        )
