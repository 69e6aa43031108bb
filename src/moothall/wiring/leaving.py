"""What is told when a workspace ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from moothall.domain.repository import Prepared
from moothall.ports import NOTHING, Workspace, Workspaces


class Leaving:
    """Workspaces of which `left` hears the id when they end: tools may have left something elsewhere. See `ports.Workspaces`."""

    def __init__(self, workspaces: Workspaces, left: Callable[[str], Awaitable[None]]) -> None:
        self._workspaces, self._left = workspaces, left

    @asynccontextmanager
    async def open(
        self,
        prepared: Prepared,
        name: str,
        *,
        patch: str = "",
        extra: str = "",
        judged: bool = False,
        instead: Mapping[str, str] = NOTHING,
    ) -> AsyncIterator[Workspace]:
        """Open a workspace."""
        async with self._workspaces.open(prepared, name, patch=patch, extra=extra, judged=judged, instead=instead) as workspace:
            try:
                yield workspace
            finally:
                await self._left(workspace.id)
