"""Shared parts of toolkits: a call ends in time, a failure is a status with a reason, and the
answer of a database is JSON of limited size.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moothall.concurrency import seconds_until
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, MoothallError, Refused
from moothall.ports import Workspace
from moothall.toolkits.db.family import DbLimits

# Shared parts of toolkits: a call ends in time, and a failure is a status with a reason.


Output = dict[str, Any]

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
    output: Awaitable[Output],
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


# The answer of a database as JSON of limited size.


_MAX_DEPTH = 40
RECEIVE_BYTES = 8_000_000
"""A server may send this much for one call; more ends the call."""
ANSWER_BYTES = 50_000
"""Size of one answer as JSON; a longer one is truncated."""


def jsonable(value: Any, depth: int = _MAX_DEPTH) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Convert a value to JSON: bytes to text, or to {"base64": …} if they are not text, and other
    types to text.
    """
    if depth == 0:
        return "[nested deeper than is shown]"
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return _bytes(value)
        case Mapping():
            return {
                str(jsonable(key, depth - 1)): jsonable(item, depth - 1)
                for key, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [jsonable(item, depth - 1) for item in value]
    return str(value)


def _bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def size(value: Any) -> int:
    """Return the number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


@dataclass(slots=True)
class Table:
    """Rows of an answer, up to the limits."""

    columns: Sequence[str]
    limits: DbLimits
    rows: list[list[Any]] = field(default_factory=list)
    cut: bool = False
    _chars_left: int = 0

    def __post_init__(self) -> None:
        self._chars_left = ANSWER_BYTES - size(list(self.columns))

    def add(self, row: Iterable[Any]) -> bool:
        """Add a row. Return False if it does not fit; no more rows can be added then."""
        values = [jsonable(value) for value in row]
        self._chars_left -= size(values) + 2
        if len(self.rows) >= self.limits.rows or self._chars_left < 0:
            self.cut = True
            return False
        self.rows.append(values)
        return True

    def output(self) -> Output:
        """Return the table."""
        return {"columns": list(self.columns), "rows": self.rows, "truncated": self.cut}
