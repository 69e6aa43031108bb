"""A stored block with inverted bytes: the loss is reported, and the affected deliberations are
marked.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command import Command
from moothall.testing.model import ScriptedModel

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def test_inverted_bytes_in_a_block_are_reported_and_the_deliberation_is_marked(
    model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    command = Command(tmp_path / "data", model.base_url)
    for name in ("early", "gone"):
        # Whatever the outcome.
        await command("deliberate", "--text", "--task-id", name, "--json", "Say hello")
    result = await command("deliberate", "--repo", str(repo), "--task-id", "hurt", "--json", TASK)
    assert result.code == 0, result.err
    assert (await command("rm", "gone")).code == 0
    check = await command("log", "check")  # a deliberate removal is not a loss
    assert (check.code, "the log is complete" in check.out) == (0, True), check.out
    block = next((tmp_path / "data").rglob("streams/EVENTS/msgs/1.blk"))
    stored = bytearray(block.read_bytes())
    for event_type in (b"moothall.seat.started", b"moothall.seat.finished"):
        at = stored.rindex(event_type)
        stored[at : at + 4] = bytes(byte ^ 0xFF for byte in stored[at : at + 4])
    block.write_bytes(stored)
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    output = ""
    async with asyncio.timeout(120):
        while "the log is NOT complete" not in output:
            line = (await server.stderr.readline()).decode()
            assert line, f"serve ended: {output}"
            output += line
    assert "1 deliberations may lack records" in output
    server.terminate()
    await server.communicate()
    checked = await command("log", "check")
    assert (checked.code, "hurt may lack" in checked.out) == (1, True), checked.out
    tail = await command("log", "tail", "--task", "hurt")
    assert tail.out.count("deliberation.damaged") == 1, "marked once, however often it is checked"
