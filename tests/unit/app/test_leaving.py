from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moothall.app.workspaces import NotifyingWorkspaces
from support.tool_gateway import FakeWorkspace


class FakeWorkspaces:
    @asynccontextmanager
    async def open(self, prepared: Any, name: str, **options: Any) -> AsyncIterator[FakeWorkspace]:
        yield FakeWorkspace()


async def test_subscribers_get_every_end() -> None:
    ended_ids: list[str] = []

    async def on_end(workspace_id: str) -> None:
        ended_ids.append(workspace_id)

    leaving = NotifyingWorkspaces(FakeWorkspaces(), on_end)
    async with leaving.open(None, "a") as workspace:  # type: ignore[arg-type]  # these workspaces need no repository
        assert (workspace.id, ended_ids) == ("ws-1", [])
    assert ended_ids == ["ws-1"]
    with pytest.raises(ZeroDivisionError):
        async with leaving.open(None, "a"):  # type: ignore[arg-type]  # as above
            raise ZeroDivisionError
    assert ended_ids == ["ws-1", "ws-1"]
