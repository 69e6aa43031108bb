"""MCP servers that live as long as their workspace: what they remember, how they end, and what they
do while nobody calls them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcphall import VENV, hall, honest, hostile, put_servers, settings_with

from moothall.domain.identity import LOCAL
from moothall.domain.tool import ToolCall, ToolStatus
from support.gate import in_seconds

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_servers(tmp_path_factory.mktemp("tools"))


def running(folder: Path) -> list[int]:
    """The processes that run a server of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if f"{folder}/mcp_server.py" in words and "python" in words[0]:
                found.append(int(entry.name))
    return found


async def test_what_a_server_remembers_is_there_until_its_workspace_ends(
    tmp_path: Path, tools: Path
) -> None:
    """Word by word, for one workspace alone, from call to call; its end is said, and then it begins
    anew.
    """
    (own := tmp_path / "own").mkdir()
    put_servers(own)
    servers = {
        "notes": honest(own),
        "brief": honest(own, keep_seconds=0),
        "idle": honest(own, keep_seconds=0.5),
    }
    servers["among"] = honest(own, files="write")
    settings = settings_with(
        tmp_path, tools, servers, sandbox={"toolchains": (VENV, own)}, mcp={"kept": 2}
    )
    async with hall(settings, tmp_path) as there:
        assert running(own) == [], "to take tools leaves nothing behind"

        async def words(server: str, word: str) -> Any:
            result = await there.call(f"mcp.{server}.counts", word=word)
            return result.error or list(result.output["data"]["words"])

        assert await words("notes", "a") == ["a"]
        assert await words("notes", "b") == ["a", "b"]
        for once in ("brief", "among"):
            assert await words(once, "a") == ["a"]
            assert await words(once, "b") == ["b"]
        side_by_side = await asyncio.gather(*(words("notes", sign) for sign in "cd"))
        assert sorted(map(len, side_by_side)) == [3, 4]

        assert (await there.call("mcp.notes.leaves", seconds=0.2)).status is ToolStatus.SUCCESS
        async with asyncio.timeout(30):
            while running(own):
                await asyncio.sleep(0.05)
        await asyncio.sleep(
            0.5
        )  # a process lets go of its memory, by which it is found, before its connection
        gone = await words("notes", "e")
        assert "the MCP server notes has ended since its last call: it ended" in gone
        assert "its state is lost, and the next call starts it anew" in gone
        assert await words("notes", "f") == ["f"]
        died = await there.call("mcp.notes.dies")
        assert "the disk of notes is gone" in died.error
        assert await words("notes", "g") == ["g"], "a call that was told of the end is told once"

        assert await words("idle", "a") == ["a"]
        assert len(running(own)) == 2
        async with asyncio.timeout(30):
            while len(running(own)) > 1:
                await asyncio.sleep(0.1)
        assert "nobody called it for 0.5 s (keep_seconds)" in await words("idle", "b")
        assert await words("notes", "h") == ["g", "h"], "the other one lives on"

        late = await there.gate._rules.toolkits["mcp"](
            ToolCall("r", "mcp.notes.waits", {}, in_seconds(3)), there.workspace, LOCAL.tenant
        )
        assert late.status is ToolStatus.TIMEOUT
        assert await words("notes", "i") == ["i"], (
            "one that does not answer is not waited for twice"
        )
        await there.left("another workspace")
        assert len(running(own)) == 1
        await there.left(there.workspace.id)
        assert running(own) == []
        assert await words("notes", "j") == ["j"]
    assert running(own) == [], "with the server its servers end"


async def test_where_there_is_no_room_the_one_unused_for_the_longest_ends(
    tmp_path: Path, tools: Path
) -> None:
    servers = {name: honest(tools) for name in ("first", "second", "third")}
    async with hall(settings_with(tmp_path, tools, servers, mcp={"kept": 2}), tmp_path) as there:
        for name in servers:
            assert (await there.call(f"mcp.{name}.counts", word=name)).status is ToolStatus.SUCCESS
        assert (
            "it was replaced by another one (mcp.kept)"
            in (await there.call("mcp.first.counts", word="x")).error
        )
        kept = await there.call("mcp.second.counts", word="y")
        assert list(kept.output["data"]["words"]) == ["second", "y"]


async def test_one_that_floods_between_calls_is_ended_then_and_the_next_call_says_so(
    tmp_path: Path, tools: Path
) -> None:
    """What it sends while nobody calls counts too, up to the next call; what is within bounds costs
    it nothing.
    """
    servers = {way: hostile(tools, way) for way in ("between", "within")}
    async with hall(
        settings_with(tmp_path, tools, servers, mcp={"receive_bytes": 200_000}), tmp_path
    ) as there:
        for name in servers:
            assert (await there.call(f"mcp.{name}.honest")).status is ToolStatus.SUCCESS
        living = there.toolkit._server_pool._servers
        (flooding,) = [one for key, one in living.items() if key[2] == "between"]
        async with asyncio.timeout(60):
            await flooding.task  # nobody calls it
        gone = await there.call("mcp.between.honest")
        assert (
            "has ended since its last call: it sent more than 200000 bytes (mcp.receive_bytes)"
            in gone.error
        )
        assert (await there.call("mcp.between.honest")).status is ToolStatus.SUCCESS, (
            "it is begun anew"
        )
        for _ in range(4):
            await asyncio.sleep(0.5)  # more than it may send, all calls together
            assert (await there.call("mcp.within.honest")).status is ToolStatus.SUCCESS
