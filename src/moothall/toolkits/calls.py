"""Calls of toolkits: a call ends in time, and a failure is a status with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from moothall.concurrency import seconds_until
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, MoothallError, Refused

if TYPE_CHECKING:
    from moothall.ports import Workspace

ToolOutput = dict[str, Any]

_STATUSES: Final[tuple[tuple[type[MoothallError], ToolStatus], ...]] = (
    (Refused, ToolStatus.BLOCKED),
    (InvalidRequest, ToolStatus.INVALID),
    (MoothallError, ToolStatus.ERROR),
)


class WorkspaceToolFailed(Exception):
    """A workspace tool failed; `result` has the reason."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.error)
        self.result = result


async def run_within(
    call: ToolCall,
    max_seconds: float,
    output: Awaitable[ToolOutput],
    *,
    timeout_status: ToolStatus = ToolStatus.TIMEOUT,
) -> ToolResult:
    """Await the output of a tool until the call's deadline, or for `max_seconds`, and return the
    result. After that time its status is `timeout_status`.
    """
    seconds = max(min(seconds_until(call.deadline), max_seconds), 0)
    try:
        async with asyncio.timeout(seconds):
            content = await output
    except TimeoutError:
        return ToolResult(
            call.request_id,
            call.tool,
            timeout_status,
            error=f"no complete answer within {seconds:.0f} seconds; the call was ended",
        )
    except WorkspaceToolFailed as failed:
        return failed.result
    except MoothallError as error:
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        return ToolResult(call.request_id, call.tool, status, error=error.message)
    return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, content)


async def call_workspace_tool(
    workspace: Workspace, call: ToolCall, tool: str, args: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Call one of the workspace's own tools, and return its output. Raises
    `WorkspaceToolFailed`.
    """
    result = await workspace.call(ToolCall(call.request_id, tool, args, call.deadline))
    if result.status is not ToolStatus.SUCCESS:
        raise WorkspaceToolFailed(
            ToolResult(
                call.request_id, call.tool, result.status, error=result.error, usage=result.usage
            )
        )
    return result.output
