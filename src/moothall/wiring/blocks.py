"""Trying whether blocks of Python can run here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from moothall.config import Settings
from moothall.domain.code import CodeBlock
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import WorkspaceFailed
from moothall.workspace.pool import Pool
from moothall.workspace.runner import LocalRunner

_SECONDS = 60.0


async def try_block(settings: Settings) -> str:
    """Run a block that asks for a tool and say what ran it. Raises `ConfigurationError`, `WorkspaceFailed` with the reason."""

    async def ask(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult("", name, ToolStatus.SUCCESS, {"content": arguments["path"], "total_lines": 1})

    async with Pool(settings) as pool:
        runner = LocalRunner(settings, pool)
        deadline = datetime.now(UTC) + timedelta(seconds=_SECONDS)
        block = CodeBlock("ws.read('a') + 'b'", {"files.read": ("path", "start", "lines")}, deadline, "local", full=False)
        ran = await runner.first(block, ask)
    if ran.value != "ab":
        raise WorkspaceFailed(ran.error or f"a block of Python gave {ran.value!r}")
    return f"pydantic-monty {version('pydantic-monty')} in a sandbox of its own"
