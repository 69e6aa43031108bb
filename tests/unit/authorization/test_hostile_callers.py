"""Hostile callers, whose requests are arbitrarily long, malformed and frequent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moothall.authorization.tokens import narrow
from moothall.domain.ids import Principal
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall
from moothall.errors import InvalidRequest, Refused
from moothall.testing.bus import MemoryBus
from moothall.tool_sessions.manager import PendingWorkspace
from support.session_manager import open_session_manager
from support.tool_gateway import App, in_seconds, tool_call

ANN = Principal("ann", "local")
SAMPLE = RepositoryRef(id="sample")


async def test_a_megabyte_long_tool_name_is_cut_in_the_record(app: App) -> None:
    result = await app.tool_gateway.call(app.seat(), tool_call("x" * 1_000_000))
    assert result.status == "invalid"
    assert len(result.tool) < 300
    assert len(app.chain.read_text()) < 3000


async def test_a_request_id_must_be_short(tmp_path: Path) -> None:
    async with open_session_manager(tmp_path, MemoryBus()) as app:
        opened = await app.session_manager.open(ANN, SAMPLE, "DEV")
        for name in ("", "x" * 201):
            with pytest.raises(InvalidRequest, match="request_id"):
                await app.session_manager.call(
                    ANN,
                    opened.workspace,
                    opened.token,
                    ToolCall(name, "files.list", {}, in_seconds(5)),
                )


async def test_a_result_is_hidden_from_a_token_that_does_not_cover_it(tmp_path: Path) -> None:
    async with open_session_manager(tmp_path, MemoryBus()) as app:
        opened = await app.session_manager.open(ANN, SAMPLE, "DEV")
        call = tool_call(path="secret.py")
        first = await app.session_manager.call(ANN, opened.workspace, opened.token, call)
        narrowed = narrow(opened.token, seconds=60, tools=["files.list"])
        with pytest.raises(Refused, match="not covered"):
            await app.session_manager.call(ANN, opened.workspace, narrowed, call)
        assert await app.session_manager.call(ANN, opened.workspace, opened.token, call) == first


async def test_a_short_lived_token_opens_a_workspace_for_the_time_of_its_parent(
    tmp_path: Path,
) -> None:
    async def find(workspace: str, principal: Principal) -> PendingWorkspace | None:
        del workspace, principal
        return PendingWorkspace(SAMPLE, "DEV")

    async with open_session_manager(tmp_path, MemoryBus()) as app:
        app.session_manager.await_calls(find)
        token = app.session_manager.token(ANN, "task-1", "DEV", 600)
        await app.session_manager.ensure_open(ANN, "task-1", narrow(token, seconds=5))
        with app.session_manager.lease("task-1", "flow") as loan:
            assert loan.seat.deadline > in_seconds(500)


async def test_a_token_of_another_tenant_opens_no_workspace(tmp_path: Path) -> None:
    lookups = []

    async def find(workspace: str, principal: Principal) -> PendingWorkspace | None:
        lookups.append((workspace, principal))
        return PendingWorkspace(SAMPLE, "DEV")

    async with open_session_manager(tmp_path, MemoryBus()) as app:
        app.session_manager.await_calls(find)
        stolen = app.session_manager.token(ANN, "task-1", "DEV", 600)
        with pytest.raises(Refused, match="belongs to another principal"):
            await app.session_manager.ensure_open(replace(ANN, tenant="other"), "task-1", stolen)
    assert lookups == []
