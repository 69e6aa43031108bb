"""`moothall serve` as a process, and functions that wait until its hosts work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from command import Command
from moothall.testing.model import ScriptedModel


async def until_serving(server: asyncio.subprocess.Process) -> int:
    """Wait until the process serves, and return the gRPC port."""
    assert server.stderr is not None
    output = b""
    try:
        async with asyncio.timeout(240):
            while (match := re.search(rb"serving gRPC on \S+:(\d+)", output)) is None:
                line = await server.stderr.readline()
                assert line, output.decode()
                output += line
    except TimeoutError:
        server.terminate()
        raise AssertionError(f"it did not serve within four minutes: {output.decode()}") from None
    return int(match[1])


@asynccontextmanager
async def serving(command: Command) -> AsyncIterator[int]:
    """Serve until the block ends; yield the gRPC port."""
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    port = await until_serving(server)
    drain = asyncio.ensure_future(server.stderr.read())
    try:
        yield port
    finally:
        server.terminate()
        async with asyncio.timeout(60):
            await server.wait()
            await drain


async def until_begun(model: ScriptedModel, count: int, *data_dirs: Path) -> None:
    """Wait until the seats of this many deliberations have called the model, or fail with the logs
    of the hosts on these data directories.
    """
    try:
        async with asyncio.timeout(240):
            while (
                len(
                    {
                        request.call_id.partition("/")[0]
                        for request in model.requests
                        if "/propose/" in request.call_id
                    }
                )
                < count
            ):
                await asyncio.sleep(0.05)
    except TimeoutError:
        logs = [path for folder in data_dirs for path in sorted(folder.glob("logs/*.log"))]
        log_text = "\n".join(
            f"{path}:\n{path.read_text(errors='replace')[-4000:]}" for path in logs
        )
        raise AssertionError(f"{count} deliberations did not begin\n{log_text}") from None
