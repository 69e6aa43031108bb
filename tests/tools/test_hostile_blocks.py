"""Hostile blocks: each ends with a status that gives the reason, and the next block of the same
seat works.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from moothall.domain.tool import BlockLimits, BlockRun, CodeBlock, ToolResult, ToolStatus
from moothall.errors import WorkspaceFailed
from moothall.workspace.runner import LocalRunner
from moothall.workspace.workspace import OverlayWorkspace
from support.local import Local, local
from support.tool_gateway import in_seconds

pytestmark = pytest.mark.e2e

TOOLS = {
    "files.read": ("path", "start", "lines"),
    "files.write": ("path", "content"),
    "files.list": ("path", "glob"),
}
LIMITS = BlockLimits(seconds=1.5, memory_bytes=64_000_000, tool_calls=20)
FULL = "import sqlite3\n"


@dataclass
class BlockWorkspace:
    """A workspace with the runner of its blocks."""

    app: Local
    workspace: OverlayWorkspace
    runner: LocalRunner
    calls: list[tuple[str, Mapping[str, Any]]]

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, arguments))
        return await self.app.call(self.workspace, name, **arguments)

    async def run(self, code: str, **options: Any) -> BlockRun:
        block = CodeBlock(code, TOOLS, in_seconds(60), "local", **options)
        return await self.runner.run(block, self.workspace, self.ask)

    def sandboxes(self) -> list[int]:
        """The sandboxes of the runner."""
        return [box.pid for boxes in self.runner._idle.values() for box in boxes]


@pytest.fixture
async def block_workspace(tmp_path: Path) -> AsyncIterator[BlockWorkspace]:
    async with local(tmp_path) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "one") as workspace:
            runner = LocalRunner(app.settings, app.workspaces.pool, LIMITS, workers=1)
            yield BlockWorkspace(app, workspace, runner, [])


HOSTILE = {
    "dunder walk": (
        "().__class__.__mro__[1].__subclasses__()",
        "error",
        "has no attribute '__class__'",
    ),
    "str.format": ("'{0.__class__.__init__.__globals__}'.format(1)", "error", "has no attribute"),
    "globals of a function": (
        "def f(): pass\nf.__globals__",
        "error",
        "has no attribute '__globals__'",
    ),
    "code of a function": ("def f(): pass\nf.__code__", "error", "has no attribute '__code__'"),
    "frames": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    error.__traceback__.tb_frame",
        "error",
        "AttributeError",
    ),
    "builtins": ("__builtins__", "error", "NameError"),
    "import by name": ("__import__('os').system('id')", "error", "NameError"),
    "a tool's insides": ("ws.__class__.__init__.__globals__", "error", "AttributeError"),
    "a tool that is none": (
        "files._call_tool('files.read', {})",
        "error",
        "no attribute '_call_tool'",
    ),
    "open": ("open('/etc/passwd').read()", "error", "PermissionError"),
    "open for writing": ("open('/tmp/x', 'w').write('x')", "error", "PermissionError"),
    "environment": ("import os\nos.environ['PATH']", "error", ""),
    "spin": ("while True:\n    pass", "timeout", "time limit"),
    "spin that catches": (
        "while True:\n    try:\n        while True:\n            pass\n    except:\n        pass",
        "timeout",
        "",
    ),
    "huge integer": ("10 ** 10 ** 8", "memory", "memory limit"),
    "growing integer": ("x = 3\nwhile True:\n    x *= x", "memory|timeout", ""),
    "recursion": ("def f(n):\n    return f(n + 1)\nf(0)", "error", "RecursionError"),
    "deep source": ("x = " + "(" * 3000 + ")" * 3000, "error", "nested"),
    "deep JSON": ("import json\njson.loads('[' * 100_000)", "error", ""),
    "a gigabyte": ("[0] * 10 ** 9", "memory", "memory limit"),
    "a growing list": ("x = []\nwhile True:\n    x.append('a' * 1000)", "memory", "memory limit"),
    "endless print": ("while True:\n    print('x' * 1000)", "output", "print less"),
    "a large value": ("'x' * 1_000_000", "output", "keep it small"),
    "regex bomb": (
        "import re\nre.match(r'(?:a(?=a))*(a|b|ab)*\\1c$', 'ab' * 2000)",
        "error|timeout",
        "",
    ),
    "sorting": ("sorted(range(10 ** 9))", "memory|timeout", ""),
    "a string bomb": ("'%1000000000d' % 1", "memory|error", ""),
    "asking for ever": (
        "while True:\n    try:\n        ws.read('no')\n    except ToolError:\n        pass",
        "budget_exceeded",
        "",
    ),
    "half a character": ("print('\\ud800')\n'\\ud800'", "success|error", ""),
    "a cyclic value": ("x = []\nx.append(x)\nx", "success", ""),
    "no code": ("1 +", "error", "SyntaxError"),
    "NUL": ("'a\\x00b'", "success", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_each_hostile_block_ends_with_its_status_and_the_next_block_works(
    block_workspace: BlockWorkspace, name: str
) -> None:
    code, statuses, message = HOSTILE[name]
    block_run = await block_workspace.run(code)
    assert str(block_run.status) in statuses.split("|"), block_run
    assert message in block_run.error
    assert block_run.tier == "monty"
    next_run = await block_workspace.run("ws.read('src/utils.py').count('def greet')")
    assert (next_run.status, next_run.value) == (ToolStatus.SUCCESS, 1), next_run


FULL_HOSTILE = {
    "spin": ("while True:\n    pass", "timeout|cpu"),
    "a gigabyte": ("x = bytearray(10 ** 9)", "memory"),
    "forks": ("import os\nwhile True:\n    os.fork()", "processes|memory|timeout|cpu|error"),
    "its parent": (
        "import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(1)",
        "error|success",
    ),
    "leaving": ("import os\nos._exit(7)", "error"),
    "endless print": ("while True:\n    print('x' * 10_000)", "output|timeout|cpu"),
    "a server": ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "error"),
    "host files": ("open('/root/.ssh/id_rsa')", "error"),
}


@pytest.mark.parametrize("name", FULL_HOSTILE)
async def test_cpython_is_limited_by_the_kernel(block_workspace: BlockWorkspace, name: str) -> None:
    code, statuses = FULL_HOSTILE[name]
    block_run = await block_workspace.run(FULL + code, seconds=5.0, memory_bytes=100_000_000)
    assert str(block_run.status) in statuses.split("|"), block_run
    assert (block_run.tier, block_run.why) == (
        "python",
        "ModuleNotFoundError: No module named 'sqlite3'",
    )
    next_run = await block_workspace.run(f"{FULL}ws.read('src/utils.py').count('def greet')")
    assert (next_run.status, next_run.value) == (ToolStatus.SUCCESS, 1), next_run


async def test_paths_outside_the_workspace_are_refused_even_through_symlinks(
    block_workspace: BlockWorkspace,
) -> None:
    created = await block_workspace.app.call(
        block_workspace.workspace,
        "code.shell",
        command="ln -s /etc evil; ln -s ../../../etc/passwd worse; ls",
    )
    assert created.status is ToolStatus.SUCCESS, created
    code = """told = []
for path in ('../../etc/passwd', '/etc/passwd', 'evil/passwd', 'worse', 'src/../../x', '.git/config'):
    try:
        told.append(ws.read(path))
    except RuntimeError as error:
        told.append('refused')
for path in ('../x', '/tmp/x', 'evil/x', 'worse', '.git/hooks/pre-commit'):
    try:
        told.append(ws.write(path, 'x'))
    except RuntimeError as error:
        told.append('refused')
told"""  # noqa: E501 - a line of embedded text
    for first in ("", FULL):
        block_run = await block_workspace.run(first + code)
        assert block_run.value == ["refused"] * 11, block_run


async def test_a_killed_runner_is_an_error_and_the_next_block_works(
    block_workspace: BlockWorkspace,
) -> None:
    assert (await block_workspace.run("1")).value == 1
    (pid,) = block_workspace.sandboxes()
    killed: list[int] = []

    async def ask(_name: str, _arguments: Mapping[str, Any]) -> ToolResult:
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        # They die with it, on a busy machine a moment later: no answer may come before that.
        psutil.wait_procs(children, timeout=10)
        killed.append(pid)
        return ToolResult("", "files.read", ToolStatus.SUCCESS, {"content": "", "total_lines": 0})

    block = CodeBlock("ws.read('a')\n'not reached'", TOOLS, in_seconds(30), "local")
    block_run = await block_workspace.runner.run(block, block_workspace.workspace, ask)
    assert (killed, block_run.status) == ([pid], ToolStatus.ERROR)
    assert "was lost" in block_run.error
    assert (await block_workspace.run("2")).value == 2
    assert block_workspace.sandboxes() != [pid]


@pytest.mark.parametrize("first", ["", FULL])
async def test_a_workspace_lost_during_a_block_fails_the_seat(
    block_workspace: BlockWorkspace, first: str
) -> None:
    async def ask(_name: str, _arguments: Mapping[str, Any]) -> ToolResult:
        raise WorkspaceFailed("the executor is gone")

    block = CodeBlock(
        f"{first}try:\n    ws.read('a')\nexcept Exception:\n    pass",
        TOOLS,
        in_seconds(30),
        "local",
    )
    with pytest.raises(WorkspaceFailed, match="the executor is gone"):
        await block_workspace.runner.run(block, block_workspace.workspace, ask)
    assert (await block_workspace.run(f"{first}2")).value == 2


@pytest.mark.parametrize("first", ["", FULL])
async def test_the_time_of_tool_calls_does_not_count_for_the_block(
    block_workspace: BlockWorkspace, first: str
) -> None:
    async def ask(_name: str, _arguments: Mapping[str, Any]) -> ToolResult:
        await asyncio.sleep(3)
        return ToolResult(
            "", "files.read", ToolStatus.SUCCESS, {"content": "slow", "total_lines": 1}
        )

    block = CodeBlock(f"{first}ws.read('a')", TOOLS, in_seconds(60), "local", seconds=1.5)
    block_run = await block_workspace.runner.run(block, block_workspace.workspace, ask)
    assert (block_run.status, block_run.value) == (ToolStatus.SUCCESS, "slow"), block_run


@pytest.mark.parametrize("first", ["", FULL])
async def test_a_block_stops_when_cancelled_and_at_its_deadline(
    block_workspace: BlockWorkspace, first: str
) -> None:
    called = asyncio.Event()

    async def ask(_name: str, _arguments: Mapping[str, Any]) -> ToolResult:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    block = CodeBlock(f"{first}ws.read('a')", TOOLS, in_seconds(60), "local")
    running = asyncio.ensure_future(
        block_workspace.runner.run(block, block_workspace.workspace, ask)
    )
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    late = await block_workspace.runner.run(
        replace(block, deadline=in_seconds(3)), block_workspace.workspace, ask
    )
    assert late.status is ToolStatus.TIMEOUT
    assert (await block_workspace.run(f"{first}2")).value == 2


async def test_tenants_have_separate_sandboxes(block_workspace: BlockWorkspace) -> None:
    await block_workspace.run("1")
    (first,) = block_workspace.sandboxes()
    block = CodeBlock("2", TOOLS, in_seconds(30), "other")
    assert (
        await block_workspace.runner.run(block, block_workspace.workspace, block_workspace.ask)
    ).value == 2
    assert first not in block_workspace.sandboxes()


async def test_cpython_can_read_the_workspaces_files_and_only_tools_can_change_them(
    block_workspace: BlockWorkspace,
) -> None:
    await block_workspace.app.call(
        block_workspace.workspace, "files.write", path="new.py", content="ANSWER = 42\n"
    )
    code = (
        f"{FULL}import new\nopen('own.txt', 'w').write('x')\nws.write('told.txt', "
        "str(new.ANSWER))\nopen('own.txt').read()"
    )
    block_run = await block_workspace.run(code)
    assert (block_run.status, block_run.value) == (ToolStatus.SUCCESS, "x"), block_run
    listed = await block_workspace.run("ws.glob('*.txt')")
    assert listed.value == ["told.txt"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import numpy\n", "No module named 'numpy'"),
        ("from os import fork\n1", "cannot import name 'fork'"),
        ("def f():\n    yield 1\nlist(f())", "yield expressions"),
        ("class A:\n    pass\nclass B(A):\n    pass\nB().__class__.__name__", "class inheritance"),
        ("import json\njson.tool", "has no attribute 'tool'"),
    ],
)
async def test_features_missing_in_monty_are_detected_before_anything_runs(
    block_workspace: BlockWorkspace, code: str, reason: str
) -> None:
    block_run = await block_workspace.run(f"ws.write('count.txt', 'x')\n{code}")
    assert block_run.tier == "python"
    assert reason in block_run.why
    assert [name for name, _ in block_workspace.calls] in (["files.write"], [])


async def test_without_permission_to_read_files_cpython_is_unavailable(
    block_workspace: BlockWorkspace,
) -> None:
    block_run = await block_workspace.run(f"{FULL}1", full=False)
    assert (block_run.status, block_run.tier) == (ToolStatus.INVALID, "monty")
    assert (
        "this Python cannot run it: ModuleNotFoundError: No module named 'sqlite3'"
        in block_run.error
    )
