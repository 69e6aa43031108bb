"""`moothall serve`, as a process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from house import Command


@asynccontextmanager
async def serving(command: Command) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port of gRPC."""
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(240):
            while (found := re.search(rb"serving gRPC on \S+:(\d+)", said)) is None:
                line = await server.stderr.readline()
                assert line, said.decode()
                said += line
    except TimeoutError:
        server.terminate()
        raise AssertionError(f"it did not serve within four minutes: {said.decode()}") from None
    drain = asyncio.ensure_future(server.stderr.read())
    try:
        yield int(found[1])
    finally:
        server.terminate()
        async with asyncio.timeout(60):
            await server.wait()
            await drain
