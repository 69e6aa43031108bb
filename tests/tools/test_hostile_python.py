"""Blocks of Python that write to the runner's socket or end in unusual ways: CPython in real
sandboxes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.tool import (
    BLOCK_LIMITS,
    BlockLimits,
    BlockRun,
    CodeBlock,
    ToolResult,
    ToolStatus,
)
from moothall.workspace.runner import LocalRunner
from moothall.workspace.workspace import OverlayWorkspace
from support.local import local

pytestmark = pytest.mark.e2e
FIRST = ("", "import socket\n")
"""The prefix that makes a block run in each tier."""
SOCKET = """
import os, json, socket, sys, threading, time
fd = next(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists(f'/proc/self/fd/{n}')
          and os.readlink(f'/proc/self/fd/{n}').startswith('socket:'))
def say(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    data = len(body).to_bytes(4, 'big') + body
    while data:
        data = data[os.write(fd, data):]
"""  # noqa: E501 - a line of embedded text


@dataclass
class CPythonWorkspace:
    """A workspace, and a runner whose tool calls are recorded."""

    runner: LocalRunner
    workspace: OverlayWorkspace
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer with a text; a path `slow` takes its time."""
        self.calls.append((name, arguments))
        if arguments.get("path") == "slow":
            await asyncio.sleep(8)
        if name != "files.read":
            return ToolResult("", name, ToolStatus.BLOCKED, error="no")
        return ToolResult("", name, ToolStatus.SUCCESS, {"content": "y" * 40_000, "total_lines": 1})

    async def run(self, code: str, seconds: float = 20) -> BlockRun:
        """Run a block under CPython."""
        return await self.runner.run(block(SOCKET + code, seconds), self.workspace, self.ask)


def block(code: str, seconds: float = 20, depth: int = 0) -> CodeBlock:
    deadline = datetime.now(UTC) + timedelta(seconds=120)
    return CodeBlock(
        code,
        {"files.read": ("path",)},
        deadline,
        "local",
        agents=depth == 0,
        seconds=seconds,
        depth=depth,
    )


@asynccontextmanager
async def open_cpython_workspace(
    folder: Path, workers: int = 2, block_limits: BlockLimits = BLOCK_LIMITS, **limits: Any
) -> AsyncIterator[CPythonWorkspace]:
    async with local(folder, **limits) as app:
        runner = LocalRunner(app.settings, app.workspaces.pool, block_limits, workers)
        async with app.workspaces.open(await app.prepared(), "one") as workspace:
            yield CPythonWorkspace(runner, workspace)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (b'{"op":"end","status":["x"],"value":1}', "error"),
        (b'{"op":"end","status":"parked","value":1}', "error"),
        (b'{"op":"end","status":"outcome_unknown"}', "error"),
        (b'{"op":"end","status":"success","value":NaN}', "success"),
        (b'{"op":"end","status":"success","value":{"a":["\\ud800",1e999]}}', "success"),
        (b'{"op":"end","status":"success","value":' + b"[" * 600 + b"]" * 600 + b"}", "success"),
    ],
)
async def test_a_forged_end_message_of_a_block_affects_only_its_own_result(
    tmp_path: Path, end: bytes, status: str
) -> None:
    async with open_cpython_workspace(tmp_path) as app:
        block_run = await app.run(f"say({end!r})\nos._exit(0)")
    assert (block_run.status, block_run.tier) == (status, "python"), block_run
    json.dumps(block_run.value, allow_nan=False, ensure_ascii=False).encode()


async def test_a_block_with_endless_tool_calls_is_ended(tmp_path: Path) -> None:
    async with open_cpython_workspace(tmp_path) as app:
        block_run = await app.run(
            "while True:\n    say({'op': 'call', 'name': 'no.tool', 'args': {}}); os.read(fd, "
            "100000)"
        )
        assert (block_run.status, len(app.calls)) == (ToolStatus.BUDGET_EXCEEDED, 300), block_run
        assert (await app.run("1 + 1")).value == 2


async def test_a_block_that_dies_while_it_waits_is_reported_as_ended(tmp_path: Path) -> None:
    async with open_cpython_workspace(tmp_path) as app:
        block_run = await app.run(
            "threading.Timer(0.3, lambda: os._exit(3)).start()\nfiles.read(path='slow')"
        )
    assert (block_run.status, "exit code 3" in block_run.error) == (ToolStatus.ERROR, True), (
        block_run
    )


WRITER = """
def fill():
    for number in range(100000):
        with open(f'/workspace/big{number}', 'wb') as file:
            file.write(os.urandom(1000000))
threading.Thread(target=fill, daemon=True).start()
"""


@pytest.mark.parametrize(
    "requesting",
    [
        "files.read(path='slow')",
        (
            "while True:\n    say({'op': 'call', 'name': 'no.tool'}); os.read(fd, 100000); "
            "time.sleep(0.05)"
        ),
    ],
)
async def test_the_disk_limit_is_checked_during_tool_calls(tmp_path: Path, requesting: str) -> None:
    async with open_cpython_workspace(
        tmp_path, block_limits=BlockLimits(tool_calls=5000), disk_bytes=20_000_000
    ) as app:
        block_run = await app.run(WRITER + requesting)
    assert block_run.status == "disk", block_run


async def test_sub_agents_blocks_get_slots_while_their_callers_wait(
    tmp_path: Path,
) -> None:
    async with open_cpython_workspace(tmp_path, workers=1) as app:

        async def agents(name: str, _arguments: Mapping[str, Any]) -> ToolResult:
            inner = [
                await app.runner.run(block(f"{first}6 * 7", depth=1), app.workspace, app.ask)
                for first in FIRST
            ]
            return ToolResult(
                "",
                name,
                ToolStatus.SUCCESS,
                {"answers": [[block_run.value for block_run in inner]]},
            )

        async with asyncio.timeout(90):
            for first in FIRST:
                block_run = await app.runner.run(
                    block(f"{first}agents.run('a')"), app.workspace, agents
                )
                assert block_run.value == [42, 42], block_run


@pytest.mark.parametrize("first", FIRST)
async def test_sub_agents_get_only_the_tools_named_in_the_code(tmp_path: Path, first: str) -> None:
    async with open_cpython_workspace(tmp_path) as app:
        calls = []

        async def agents(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            calls.append((name, arguments))
            return ToolResult("", name, ToolStatus.SUCCESS, {"answers": ["yes"]})

        code = f"{first}agents.run('look', tools=['files.read'])"
        block_run = await app.runner.run(block(code), app.workspace, agents)
    assert block_run.value == "yes", block_run
    assert calls == [("agents.run", {"prompts": ["look"], "tools": ["files.read"]})]
