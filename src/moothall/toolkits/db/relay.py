"""A connection to a server that ends when too much comes back: for clients that take a whole answer
into memory first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from moothall.network.proxy import CHUNK, Streams, pump

_CONNECTIONS = 4  # a client's own, and those by which it cancels
_ACCEPTING = 5


class _Flooded(OSError):
    """The server sent more than it may."""


@dataclass(slots=True)
class LoopbackRelay:
    """Listens on a port of loopback. `left` bytes may still come back; `flooded` says that more
    came.
    """

    connect: Callable[[], Awaitable[Streams]]
    left: int
    port: int = 0
    flooded: bool = False
    failed: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one connection says, and what it is told."""
        if len(self._open) >= _CONNECTIONS * 2:
            writer.transport.abort()
            return
        self._open.add(writer)
        upstream = None
        try:
            upstream = await self.connect()
            self._open.add(upstream[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(reader, upstream[1], lambda _: None), name="relay-out")
                both.create_task(pump(upstream[0], writer, self._spend), name="relay-in")
        except* _Flooded:
            self.flooded = True
        except* OSError as errors:
            self.failed = self.failed or str(errors.exceptions[0])
        finally:
            for one in (writer, *((upstream[1],) if upstream else ())):
                self._open.discard(one)
                one.transport.abort()

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _Flooded

    async def close(self) -> None:
        """End every connection."""
        for _ in range(
            _ACCEPTING
        ):  # what was accepted just now becomes a connection in a few rounds of the loop
            await asyncio.sleep(0)
        for writer in tuple(self._open):
            writer.transport.abort()
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)


@asynccontextmanager
async def relaying(
    connect: Callable[[], Awaitable[Streams]], most: int
) -> AsyncIterator[LoopbackRelay]:
    """Relay to what `connect` opens until the context ends; at most `most` bytes come back in
    all.
    """
    relay = LoopbackRelay(connect, most)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=CHUNK)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
