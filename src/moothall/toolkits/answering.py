"""What all toolkits share: a call ends in time, and what fails is a status with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from moothall.concurrency import seconds_until
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, MoothallError, Refused
from moothall.ports import Workspace

Output = dict[str, Any]

_STATUSES: Final[tuple[tuple[type[MoothallError], ToolStatus], ...]] = (
    (Refused, ToolStatus.BLOCKED),
    (InvalidRequest, ToolStatus.INVALID),
    (MoothallError, ToolStatus.ERROR),
)


class NotStored(Exception):
    """The workspace did not take or give the file; the result says why."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.error)
        self.result = result


async def answer_within(
    call: ToolCall,
    most_seconds: float,
    work: Awaitable[Output],
    *,
    late: ToolStatus = ToolStatus.TIMEOUT,
) -> ToolResult:
    """Return what comes of `work` until the call's deadline or `most_seconds`; then its status is
    `late`.
    """
    seconds = max(min(seconds_until(call.deadline), most_seconds), 0)
    try:
        async with asyncio.timeout(seconds):
            output = await work
    except TimeoutError:
        return ToolResult(
            call.request_id,
            call.tool,
            late,
            error=f"no whole answer within {seconds:.0f} seconds; the call was ended",
        )
    except NotStored as failed:
        return failed.result
    except MoothallError as error:
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        return ToolResult(call.request_id, call.tool, status, error=error.message)
    return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, output)


async def in_workspace(
    workspace: Workspace, call: ToolCall, tool: str, args: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Let the workspace run one of its own tools, and return its output. Raises `NotStored`."""
    result = await workspace.call(ToolCall(call.request_id, tool, args, call.deadline))
    if result.status is not ToolStatus.SUCCESS:
        raise NotStored(
            ToolResult(
                call.request_id, call.tool, result.status, error=result.error, usage=result.usage
            )
        )
    return result.output
