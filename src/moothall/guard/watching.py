"""What a span and the figures say of a tool call."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from time import perf_counter

from moothall import telemetry
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.guard.seat import SeatContext

Noted = Callable[[ToolResult], ToolResult]
_UNKNOWN = "unknown"


@contextmanager
def tool_call(seat: SeatContext, call: ToolCall, known: Container[str]) -> Iterator[Noted]:
    """Watch one call of one of the tools `known`; give its result to what is yielded. One that ends otherwise was cancelled or failed."""
    tool = call.tool if call.tool in known else _UNKNOWN  # the name is the model's word
    status = ToolStatus.CANCELLED
    started = perf_counter()
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call.request_id,
        "moothall.seat": seat.seat,
        "moothall.workspace": seat.workspace_id,
    }
    with telemetry.span("execute_tool", about) as span, telemetry.metrics.TOOL_CALLS_IN_FLIGHT.held(tool):

        def noted(result: ToolResult) -> ToolResult:
            nonlocal status
            status = result.status
            span.set({"moothall.tool.status": status, "moothall.tool.cpu_ms": result.usage.cpu_ms})
            if result.audit_id:
                span.set({"moothall.audit_id": result.audit_id})
            if status is not ToolStatus.SUCCESS:
                span.fail(status)
            return _count(tool, result)

        try:
            yield noted
        finally:
            telemetry.metrics.TOOL_CALLS.add(tool, status)
            telemetry.metrics.TOOL_CALL_SECONDS.observe(perf_counter() - started, tool)


def _count(tool: str, result: ToolResult) -> ToolResult:
    if result.status is ToolStatus.BUDGET_EXCEEDED:
        telemetry.metrics.BUDGET_REFUSALS.add("tool")
    if result.usage.cpu_ms > 0:
        telemetry.metrics.TOOL_CPU_SECONDS.add(tool, amount=result.usage.cpu_ms / 1000)
    if result.usage.max_rss_bytes > 0:
        telemetry.metrics.TOOL_MEMORY_BYTES.observe(result.usage.max_rss_bytes, tool)
    return result
