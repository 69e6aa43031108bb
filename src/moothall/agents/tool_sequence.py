"""Tools run without a model: one, or a list of which some run side by side."""

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

_LONGEST = timedelta(hours=1)  # the gate's own limits are nearer


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What came of a tool. `tool_id` tells it from others of the same task."""

    wanted: Action
    tool_id: str
    result: ToolResult

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.result.status is ToolStatus.SUCCESS


class ToolSequenceRunner:
    """Runs tools in callers' workspaces, at most `parallelism` of a list side by side. How often a
    caller may use a tool that runs code or acts outside is counted here for all its workspaces
    together: each call may have one of its own.
    """

    def __init__(self, visits: ToolSessions, parallelism: int) -> None:
        self._visits = visits
        self._parallelism = parallelism
        self._rates = Rates()

    async def run(
        self, who: Principal, opened: OpenedSession, wanted: Sequence[Action], task_id: str
    ) -> tuple[ToolRun, ...]:
        """Return what came of each, in their order. One that fails stops no other.

        Raises what `ToolSessions.call` raises for a call that is refused, once the others
        have been called off.
        """
        slots = asyncio.Semaphore(self._parallelism)
        began = time.time_ns()

        async def one(place: int, item: Action) -> ToolRun:
            async with slots:
                # A request id stands for one request of a workspace, and a session's outlives the
                # task.
                request_id = digest(task_id, str(began), str(place))[:32]
                call = ToolCall(request_id, item.tool, item.arguments, datetime.now(UTC) + _LONGEST)
                result = self._too_often(who, call) or await self._visits.call(
                    who, opened.workspace, opened.token, call
                )
                return ToolRun(item, f"{task_id}.{place}", result)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(place, item)) for place, item in enumerate(wanted)]
        return tuple(task.result() for task in running)

    def _too_often(self, who: Principal, call: ToolCall) -> ToolResult | None:
        spec = self._visits.gate.catalogue.get(call.tool)
        if spec is None or not spec.dangerous:
            return None
        seconds = self._rates.take((who.tenant, who.name, call.tool), spec)
        if not seconds:
            return None
        return ToolResult(
            call.request_id, call.tool, ToolStatus.RATE_LIMITED, error=too_often(spec, seconds)
        )
