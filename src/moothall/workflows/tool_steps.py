"""Tool calls of a workflow: in a workspace that a caller opened, under the caller's token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from moothall.concurrency import seconds_until
from moothall.domain.codec import load
from moothall.domain.event import EventType
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.domain.topic import Channel
from moothall.ports import Log
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.persistent_workspace import WorkspaceLease


@dataclass(frozen=True, slots=True)
class StepExecutor:
    """An executor of steps in one workspace, under its caller's token, and the log of its calls."""

    sessions: ToolSessions
    lease: WorkspaceLease
    token: str
    flow: str
    log: Log

    @property
    def deadline(self) -> datetime:
        """The time when the workspace closes."""
        return self.lease.seat.deadline

    @property
    def _workspace(self) -> str:
        return self.lease.seat.workspace_id

    async def call(self, call: ToolCall) -> ToolResult:
        """Call a tool through the gateway."""
        return await self.sessions.call(None, self._workspace, self.token, call, flow=self.flow)

    async def wait_until_resolved(self, call: ToolCall) -> ToolResult:
        """Wait for an operator's decision while the workspace is open, then call again."""
        try:
            async with asyncio.timeout(max(0.0, seconds_until(self.deadline))):
                await self.sessions.wait_until_resolved(self._workspace, call.request_id)
        except TimeoutError:
            pass
        time_left = call.deadline - datetime.now(UTC)
        return await self.call(
            replace(call, deadline=datetime.now(UTC) + max(time_left, timedelta(seconds=60)))
        )

    async def find_result(self, request_id: str) -> ToolResult | bool:
        """Return the last result of a call in the log, or True if it only began, False if it did
        not.
        """
        known: ToolResult | bool = False
        async for recorded in self.log.replay((Channel.TOOLS.of(self._workspace),)):
            event = recorded.event
            if event.data.get("request_id") != request_id:
                continue
            if event.type == EventType.TOOL_STARTED:
                known = True
            elif event.type == EventType.TOOL_FINISHED:
                names = ToolResult.__dataclass_fields__
                logged_result = load(
                    ToolResult, {name: value for name, value in event.data.items() if name in names}
                )
                known = (
                    known
                    if known is True and logged_result.status is ToolStatus.PARKED
                    else logged_result
                )
        return known

    async def commit(self) -> str:
        """Commit the current files and return the commit."""
        return await self.lease.commit()

    async def rewind(self, commit: str) -> None:
        """Reset the files to a commit."""
        await self.lease.rewind(commit)
