"""The pool of persistent MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moothall.toolkits.mcp.links import Key, LinkEnd, LiveServer, ServerPool, Streams

KEY: Key = ("local", "workspace", "slow")


class Starting:
    """A starter whose links never open, and that counts them."""

    def __init__(self) -> None:
        self.up = self.begun = 0

    @asynccontextmanager
    async def link(self, _: LinkEnd) -> AsyncIterator[Streams]:
        self.up += 1
        self.begun += 1
        try:
            await asyncio.Event().wait()
            yield None, None
        finally:
            self.up -= 1

    def start(self) -> LiveServer:
        return LiveServer("slow", self.link, seconds=600, keep_seconds=600)


async def _time_out_during_start(server_pool: ServerPool, starting: Starting) -> None:
    """Let a call time out while its server starts."""
    start_count = starting.begun
    call = asyncio.create_task(_call(server_pool, starting))
    while starting.begun == start_count:
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])


async def _call(server_pool: ServerPool, starting: Starting) -> None:
    async with server_pool.call(KEY, starting.start):
        pass


async def test_a_server_of_a_call_cancelled_during_the_start_ends_with_its_workspace() -> None:
    server_pool, starting = ServerPool(2, asyncio.Semaphore(8)), Starting()
    async with asyncio.timeout(30):
        for _ in range(3):
            await _time_out_during_start(server_pool, starting)
        await server_pool.close_workspace("workspace")
    assert (starting.begun, starting.up) == (3, 0)


async def test_cancelling_a_call_that_waits_for_a_slot_ends_no_server() -> None:
    slots = asyncio.Semaphore(0)
    server_pool, starting = ServerPool(2, slots), Starting()
    async with asyncio.timeout(30):
        await _time_out_during_start(server_pool, starting)
        waiting = asyncio.create_task(_call(server_pool, starting))
        while not starting.up:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (starting.begun, starting.up) == (1, 1)
        await server_pool.close()
    assert starting.up == 0
