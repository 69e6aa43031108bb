"""Families of tools that need a client library and run on the trusted side, for a workspace without
a network. Each family is a package here. This module has their base class, and what their toolkits
share.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from moothall.concurrency import seconds_until
from moothall.config import Section, Settings
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, MoothallError, Refused

if TYPE_CHECKING:  # `moothall config` needs only the settings
    from moothall.domain.status import Finding
    from moothall.ports import Toolkit, Workspace
    from moothall.tools.spec import ToolSpec

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class OpenedFamily:
    """A running family. `close_workspace` is called with the id of each workspace that ends, so
    that the family can remove resources outside the workspace.
    """

    toolkit: Toolkit
    close_workspace: Callable[[str], Awaitable[None]] | None = None


class Family(ABC, Generic[S]):
    """A family of tools that run outside workspaces. Each family has its own package here and an
    entry in `settings.FAMILIES`.

    section: the name of its settings.
    kind: the class of its settings.

    Methods receive all settings, because a family may depend on the settings of another. Methods
    import their dependencies, because `moothall config` needs only the settings.
    """

    section: ClassVar[str]
    kind: type[S]

    def own_settings(self, settings: Settings) -> S:
        """Return the family's section of the settings."""
        return cast("S", getattr(settings, self.section))

    @abstractmethod
    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return the catalogue entries in the order of prompts. The tools are always the same."""

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Return the tools that a tenant cannot use yet: name → missing setting."""
        del settings, tenant
        return {}

    @abstractmethod
    def open(self, settings: Settings) -> AbstractAsyncContextManager[OpenedFamily]:
        """Run the services of the tools while the context is open. Raises `ConfigurationError`."""

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Test the configured services for `moothall doctor`; yield nothing without any."""
        del settings
        nothing: tuple[Finding, ...] = ()
        for finding in nothing:
            yield finding


# Calls of toolkits: a call ends in time, and a failure is a status with a reason.


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
