"""The family `clock`: its tool, settings, toolkit, missing settings and health check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from pydantic import Field

from moothall.config import Section, Settings
from moothall.domain.status import Finding
from moothall.domain.tool import ToolCall, ToolResult
from moothall.ports import Workspace
from moothall.toolkits import Family, OpenedFamily
from moothall.toolkits.calls import ToolOutput, run_within
from moothall.tools.schemas import Arguments
from moothall.tools.schemas import Output as Answer
from moothall.tools.spec import Caps, Danger, ToolSpec


class Clock(Section):
    """The tool `clock.now`."""

    time: str = Field("", description="what it says; empty: there is none")


class Now(Arguments):
    """Arguments of `clock.now`: none."""


class Time(Answer):
    """The current time."""

    time: str


class ClockTools:
    """The toolkit of the category `clock`. `left` holds the workspaces that have ended."""

    def __init__(self, settings: Clock) -> None:
        self._settings = settings
        self.left: list[str] = []

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Return the current time."""
        del workspace, tenant
        return await run_within(call, 5, self._output())

    async def _output(self) -> ToolOutput:
        return {"time": self._settings.time}

    async def leave(self, workspace_id: str) -> None:
        """Record that a workspace has ended."""
        self.left.append(workspace_id)


class ClockFamily(Family[Clock]):
    """The family of `clock.now`."""

    section = "clock"
    kind = Clock

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """See `Family`."""
        del settings
        return [
            ToolSpec(
                name="clock.now",
                summary="say what time it is",
                arguments=Now,
                output=Time,
                danger=Danger.READ,
                caps=Caps(5),
            )
        ]

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        del tenant
        return (
            {}
            if self.own_settings(settings).time
            else {"clock.now": "MOOTHALL_CLOCK__TIME is not set"}
        )

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        tools = ClockTools(self.own_settings(settings))
        yield OpenedFamily(tools.call, tools.leave)
        assert tools.left == ["ws-1"]

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """See `Family`."""
        yield Finding("tool clock.now", ok=True, detail=self.own_settings(settings).time)
