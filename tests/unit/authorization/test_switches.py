from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moothall.authorization.rules import SWITCHES, Switches, grant_for
from moothall.config import BusSettings
from moothall.domain.tool import ToolStatus
from moothall.errors import InvalidRequest
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server
from moothall.ports import Bucket
from moothall.testing.bus import MemoryBus
from support.tool_gateway import open_app, tool_call


@pytest.fixture(params=["memory", "jetstream"])
async def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bucket]:
    if request.param == "memory":
        yield MemoryBus().bucket(SWITCHES)
        return
    async with (
        embedded_server(BusSettings(), tmp_path / "bus") as url,
        open_bus(BusSettings(), url) as bus,
    ):
        yield bus.bucket(SWITCHES)


async def test_a_switch_set_by_one_process_reaches_another(bucket: Bucket) -> None:
    first_process, second_process = Switches(bucket), Switches(bucket)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(second_process.run())
        await first_process.switch(
            "local", "git.diff", enabled=False, actor="ann", reason="too slow"
        )
        await first_process.switch("local", "files.read", enabled=False, actor="ann")
        await first_process.switch("local", "files.read", enabled=True, actor="ann")
        async with asyncio.timeout(60):
            while second_process.off("local") != {"git.diff"}:
                await asyncio.sleep(0.01)
        following.cancel()
    later_process = Switches(bucket)
    await later_process.refresh()
    assert later_process.off("local") == {"git.diff"} == first_process.off("local")
    assert later_process.off("other") == frozenset()
    stored = await bucket.get("local.git.diff")
    assert stored is not None
    assert (stored["who"], stored["reason"]) == ("ann", "too slow")


async def test_an_unknown_tool_cannot_be_switched() -> None:
    with pytest.raises(InvalidRequest, match=r"there is no tool 'files\.reed'"):
        await Switches(MemoryBus().bucket(SWITCHES)).switch(
            "local", "files.reed", enabled=False, actor="ann"
        )


async def test_an_empty_document_removes_the_tool() -> None:
    bucket = MemoryBus().bucket(SWITCHES)
    await bucket.put("local.files.read", {"enabled": "yes"})
    switches = Switches(bucket)
    await switches.refresh()
    assert switches.off("local") == {"files.read"}


async def test_a_disabled_tool_is_hidden_from_seats(tmp_path: Path) -> None:
    switches = Switches(MemoryBus().bucket(SWITCHES))
    async with open_app(tmp_path, off=switches.off) as app:
        grant = grant_for("dev")
        assert "files.append" in [spec.name for spec in app.tool_gateway.list_tools("local", grant)]
        await switches.switch("local", "files.append", enabled=False, actor="ann")

        refused = await app.tool_gateway.call(
            app.seat(), tool_call("files.append", path="a", content="x")
        )
        misspelled = await app.tool_gateway.call(app.seat(), tool_call("files.appendd", number=2))
        none = await app.tool_gateway.call(app.seat(), tool_call("zzz", number=3))
        assert refused.status is ToolStatus.INVALID
        assert refused.error.startswith("there is no tool 'files.append'")
        assert app.workspace.calls == []
        for result in (refused, misspelled, none):
            assert "files.append" not in result.error.replace("there is no tool 'files.append", "")
        assert "files.append" not in [
            spec.name for spec in app.tool_gateway.list_tools("local", grant)
        ]
        assert "files.append" in [spec.name for spec in app.tool_gateway.list_tools("other", grant)]

        await switches.switch("local", "files.append", enabled=True, actor="ann")
        result_after = await app.tool_gateway.call(
            app.seat(), tool_call("files.append", number=4, path="a", content="x")
        )
        assert result_after.status is ToolStatus.SUCCESS
