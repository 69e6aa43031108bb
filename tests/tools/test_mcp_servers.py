"""MCP servers that live as long as their workspace: their memory, their end, and their activity
between calls.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mcp_workspace import VENV, honest, hostile, open_mcp_workspace, put_servers, settings_with
from moothall.domain.ids import LOCAL
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.toolkits.mcp import McpFamily
from support.tool_gateway import in_seconds

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_servers(tmp_path_factory.mktemp("tools"))


def running(folder: Path) -> list[int]:
    """Return the processes that run a server of this folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if f"{folder}/mcp_server.py" in argv and "python" in argv[0]:
                pids.append(int(entry.name))
    return pids


async def test_a_server_keeps_its_memory_until_its_workspace_ends(
    tmp_path: Path, tools: Path
) -> None:
    """Its memory belongs to one workspace and lasts between calls. Its end is reported, and it is
    then restarted.
    """
    (server_folder := tmp_path / "own").mkdir()
    put_servers(server_folder)
    servers = {
        "notes": honest(server_folder),
        "brief": honest(server_folder, keep_seconds=0),
        "idle": honest(server_folder, keep_seconds=0.5),
    }
    servers["among"] = honest(server_folder, files="write")
    settings = settings_with(
        tmp_path, tools, servers, sandbox={"toolchains": (VENV, server_folder)}
    )
    async with open_mcp_workspace(settings, tmp_path) as mcp:
        assert running(server_folder) == [], "listing the tools leaves a process behind"

        async def remember(server: str, word: str) -> Any:
            result = await mcp.call(f"mcp.{server}.counts", word=word)
            return result.error or list(result.output["data"]["words"])

        assert await remember("notes", "a") == ["a"]
        assert await remember("notes", "b") == ["a", "b"]
        for short_lived in ("brief", "among"):
            assert await remember(short_lived, "a") == ["a"]
            assert await remember(short_lived, "b") == ["b"]
        side_by_side = await asyncio.gather(*(remember("notes", sign) for sign in "cd"))
        assert sorted(map(len, side_by_side)) == [3, 4]

        assert (await mcp.call("mcp.notes.leaves", seconds=0.2)).status is ToolStatus.SUCCESS
        async with asyncio.timeout(30):
            while running(server_folder):
                await asyncio.sleep(0.05)
        # A process releases its memory, by which it is found, before its connection.
        await asyncio.sleep(0.5)
        error = await remember("notes", "e")
        assert "the MCP server notes has ended since its last call: it ended" in error
        assert "its state is lost, and the next call restarts it" in error
        assert await remember("notes", "f") == ["f"]
        died = await mcp.call("mcp.notes.dies")
        assert "the disk of notes is gone" in died.error
        assert await remember("notes", "g") == ["g"], "the end is reported once"

        assert await remember("idle", "a") == ["a"]
        assert len(running(server_folder)) == 2
        async with asyncio.timeout(30):
            while len(running(server_folder)) > 1:
                await asyncio.sleep(0.1)
        assert "nobody called it for 0.5 s (keep_seconds)" in await remember("idle", "b")
        assert await remember("notes", "h") == ["g", "h"], "the other server keeps running"

        late = await mcp.tool_gateway._rules.toolkits["mcp"](
            ToolCall("r", "mcp.notes.waits", {}, in_seconds(3)), mcp.workspace, LOCAL.tenant
        )
        assert late.status is ToolStatus.TIMEOUT
        assert await remember("notes", "i") == ["i"], "a silent server is not waited for twice"
        await mcp.left("another workspace")
        assert len(running(server_folder)) == 1
        await mcp.left(mcp.workspace.id)
        assert running(server_folder) == []
        assert await remember("notes", "j") == ["j"]
    assert running(server_folder) == [], "MCP servers end with their parent"


async def test_beyond_the_limit_the_least_recently_used_server_ends(
    tmp_path: Path, tools: Path
) -> None:
    servers = {name: honest(tools) for name in ("first", "second", "third")}
    async with open_mcp_workspace(
        settings_with(tmp_path, tools, servers), tmp_path, family=McpFamily(max_servers=2)
    ) as mcp:
        for name in servers:
            assert (await mcp.call(f"mcp.{name}.counts", word=name)).status is ToolStatus.SUCCESS
        assert (
            "it was replaced by another one, because 2 of them run"
            in (await mcp.call("mcp.first.counts", word="x")).error
        )
        second = await mcp.call("mcp.second.counts", word="y")
        assert list(second.output["data"]["words"]) == ["second", "y"]


async def test_a_server_that_floods_between_calls_is_ended_and_the_next_call_reports_it(
    tmp_path: Path, tools: Path
) -> None:
    """Output between calls counts towards the next call; output within bounds has no effect."""
    servers = {kind: hostile(tools, kind) for kind in ("between", "within")}
    async with open_mcp_workspace(settings_with(tmp_path, tools, servers, mcp={}), tmp_path) as mcp:
        for name in servers:
            assert (await mcp.call(f"mcp.{name}.honest")).status is ToolStatus.SUCCESS
        live = mcp.toolkit._server_pool._servers
        (flooding,) = [server for key, server in live.items() if key[2] == "between"]
        async with asyncio.timeout(60):
            await flooding.task  # between calls
        result = await mcp.call("mcp.between.honest")
        assert "has ended since its last call: it sent more than 8000000 bytes" in result.error
        assert (await mcp.call("mcp.between.honest")).status is ToolStatus.SUCCESS, (
            "the server is restarted"
        )
        for _ in range(4):
            await asyncio.sleep(0.5)  # more than it may send in all calls together
            assert (await mcp.call("mcp.within.honest")).status is ToolStatus.SUCCESS
