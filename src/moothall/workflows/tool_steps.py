"""What a plan is carried out with: a workspace that a caller opened, under the caller's token."""

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
    """One workspace, under its caller's token, and the log of what was called in it."""

    visits: ToolSessions
    loan: WorkspaceLease
    token: str
    flow: str
    log: Log

    @property
    def deadline(self) -> datetime:
        """When the workspace closes."""
        return self.loan.seat.deadline

    @property
    def _workspace(self) -> str:
        return self.loan.seat.workspace_id

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool through the gate."""
        return await self.visits.call(None, self._workspace, self.token, call, flow=self.flow)

    async def wait_until_resolved(self, call: ToolCall) -> ToolResult:
        """Wait for an operator's word, as long as the workspace is open, and ask again."""
        try:
            async with asyncio.timeout(max(0.0, seconds_until(self.deadline))):
                await self.visits.wait_until_resolved(self._workspace, call.request_id)
        except TimeoutError:
            pass
        allowed = call.deadline - datetime.now(UTC)
        return await self.call(
            replace(call, deadline=datetime.now(UTC) + max(allowed, timedelta(seconds=60)))
        )

    async def find_result(self, request_id: str) -> ToolResult | bool:
        """Return what the log says of a call: its last result, or whether it began."""
        found: ToolResult | bool = False
        async for recorded in self.log.replay((Channel.TOOLS.of(self._workspace),)):
            event = recorded.event
            if event.data.get("request_id") != request_id:
                continue
            if event.type == EventType.TOOL_STARTED:
                found = True
            elif event.type == EventType.TOOL_FINISHED:
                names = ToolResult.__dataclass_fields__
                told = load(
                    ToolResult, {name: value for name, value in event.data.items() if name in names}
                )
                found = found if found is True and told.status is ToolStatus.PARKED else told
        return found

    async def commit(self) -> str:
        """Keep the files as they are now."""
        return await self.loan.commit()

    async def rewind(self, commit: str) -> None:
        """Make the files as a commit has them."""
        await self.loan.rewind(commit)
