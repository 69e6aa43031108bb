"""The only way out of a browser: a forward proxy that opens a connection only to where tools may go.

Each name is resolved once, here, and the address that is connected to is the one that was judged, for pages, what they load,
redirects and websockets alike.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from moothall.errors import InvalidRequest, Refused
from moothall.toolkits.answering import CallFailed
from moothall.toolkits.destinations import Destinations, Unreachable

_CHUNK = 65_536
_HEAD_SECONDS, _CONNECT_SECONDS, _CLOSE_SECONDS = 20.0, 10.0, 5.0
_CONNECTIONS, _ACCEPTING = 128, 5
_HOPS = frozenset({b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"te", b"upgrade"})

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Spent(OSError):
    """More was sent than a call may send or get."""


@dataclass(slots=True)
class Proxy:
    """`left` bytes may still pass; `refused` says of each host and port that was asked for in vain why."""

    destinations: Destinations
    left: int
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection of the browser. What fails ends it."""
        if len(self._open) >= _CONNECTIONS:
            writer.transport.abort()
            return
        self._idle.clear()
        self._open.add(writer)
        try:
            await self._answer(reader, writer)
        except* (OSError, EOFError, asyncio.LimitOverrunError, ValueError, Refused, InvalidRequest, CallFailed):
            pass  # the browser sees that the connection ended; why is in `refused`
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            if not self._open:
                self._idle.set()

    async def close(self) -> None:
        """End every connection."""
        for writer in tuple(self._open):
            writer.transport.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._idle.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        tunnel = method == b"CONNECT"
        url = URL(("http://" if tunnel else "") + target.decode("ascii"))
        if not tunnel and url.scheme != "http":
            raise ValueError("a proxy is asked for http:// or to connect")
        try:
            upstream = await self._connect(url)
        except (Refused, InvalidRequest, CallFailed) as error:
            if isinstance(error, Refused):
                self.refused[url.host or "", url.port or 0] = error.message
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                kept = [line for line in headers.split(b"\r\n") if line.partition(b":")[0].strip().lower() not in _HOPS]
                path = url.raw_path_qs.encode("ascii")
                upstream[1].write(b"\r\n".join((method + b" " + path + b" HTTP/1.1", b"Connection: close", *kept)))
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, upstream[1]), name="proxy-out")
                both.create_task(self._pump(upstream[0], writer), name="proxy-in")
        finally:
            upstream[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(_CHUNK):
            self.left -= len(some)
            if self.left < 0:
                raise _Spent
            writer.write(some)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _connect(self, url: URL) -> Streams:
        """Connect to an address of a host that may be reached. Raises `Refused`, `InvalidRequest`, `CallFailed`."""
        self.destinations.check(str(url.origin()))
        named = self.destinations.named(url)
        refused = failed = ""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                for about in await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM):
                    try:
                        return await _open_streams(
                            socket.socket(*about[:3]) if named else self.destinations.open_socket(about), about[4]
                        )
                    except Unreachable as error:
                        refused = refused or str(error)
                    except OSError as error:
                        failed = failed or str(error.strerror or error)
        except (OSError, UnicodeError) as error:  # no such name, or no answer in time
            raise CallFailed(f"{url.host} cannot be reached") from error
        if failed:
            raise CallFailed(f"{url.host} cannot be reached: {failed}")
        raise Refused(f"{url.host}: {refused or 'it has no address'}")


async def _open_streams(opened: socket.socket, where: Any) -> Streams:
    opened.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(opened, where)
        return await asyncio.open_connection(sock=opened, limit=_CHUNK)
    except BaseException:
        opened.close()
        raise


@asynccontextmanager
async def proxying(destinations: Destinations, listening: socket.socket, most: int) -> AsyncIterator[Proxy]:
    """Serve a proxy on a socket that listens already, until the context ends; then no connection of it is left."""
    proxy = Proxy(destinations, most)
    server = await asyncio.start_server(proxy.serve, sock=listening, limit=_CHUNK)
    try:
        yield proxy
    finally:
        server.close()
        for _ in range(_ACCEPTING):  # what was accepted just now becomes a connection in a few rounds of the loop
            await asyncio.sleep(0)
        await proxy.close()
