"""Tools that run without a model: one, or a list that runs partly in parallel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from moothall.authorization.rate_limits import Rates, too_often
from moothall.domain.identity import Principal
from moothall.domain.ids import digest
from moothall.domain.tool import Action, ToolCall, ToolResult, ToolStatus
from moothall.tool_sessions.manager import OpenedSession, ToolSessions

_MAX_CALL_TIME = timedelta(hours=1)  # the gateway's own limits are shorter


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool call and its result. `tool_id` distinguishes it from the other calls of its task."""

    action: Action
    tool_id: str
    result: ToolResult

    @property
    def ok(self) -> bool:
        """True if the call succeeded."""
        return self.result.status is ToolStatus.SUCCESS


class ToolSequenceRunner:
    """A runner of tools in callers' workspaces, at most `parallelism` of a list side by side.

    Each call may have a workspace of its own, so the rate limits of tools that run code or act
    outside are counted here, over all workspaces of a caller.
    """

    def __init__(self, tool_sessions: ToolSessions, parallelism: int) -> None:
        self._tool_sessions = tool_sessions
        self._parallelism = parallelism
        self._rates = Rates()

    async def run_tools(
        self, who: Principal, opened: OpenedSession, actions: Sequence[Action], task_id: str
    ) -> tuple[ToolRun, ...]:
        """Run tools and return their results, in order. A failed tool does not stop the others.

        Raises what `ToolSessions.call` raises for a call that is refused, after the other calls are
        cancelled.
        """
        slots = asyncio.Semaphore(self._parallelism)
        began = time.time_ns()

        async def run_one(index: int, action: Action) -> ToolRun:
            async with slots:
                # Request ids are unique in a workspace, which may outlive the task.
                request_id = digest(task_id, str(began), str(index))[:32]
                call = ToolCall(
                    request_id, action.tool, action.arguments, datetime.now(UTC) + _MAX_CALL_TIME
                )
                result = self._too_often(who, call) or await self._tool_sessions.call(
                    who, opened.workspace, opened.token, call
                )
                return ToolRun(action, f"{task_id}.{index}", result)

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(run_one(index, action)) for index, action in enumerate(actions)
            ]
        return tuple(task.result() for task in running)

    def _too_often(self, who: Principal, call: ToolCall) -> ToolResult | None:
        spec = self._tool_sessions.gateway.catalogue.get(call.tool)
        if spec is None or not spec.dangerous:
            return None
        seconds = self._rates.take((who.tenant, who.name, call.tool), spec)
        if not seconds:
            return None
        return ToolResult(
            call.request_id, call.tool, ToolStatus.RATE_LIMITED, error=too_often(spec, seconds)
        )
