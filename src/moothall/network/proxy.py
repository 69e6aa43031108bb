"""The only way out of a browser and of a repository's set-up: a forward proxy that opens a
connection only to where they may go.

Each name is resolved once, here, and the address that is connected to is the one that was judged,
for pages, what they load, redirects and websockets alike. What needs a credential of the operator's
gets it here, outside the wall: a tunnel to such a host ends in this process, which reads on the
other side's behalf and changes nothing there.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yarl import URL

from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.network.destinations import Destinations, Unreachable

if TYPE_CHECKING:
    from moothall.network.credentials import Credentials  # costs start time, and few have any

CHUNK = 65_536
_HEAD_SECONDS, _CONNECT_SECONDS, _CLOSE_SECONDS = 20.0, 10.0, 5.0
_CONNECTIONS, _ACCEPTING = 128, 5
_READING = frozenset({b"GET", b"HEAD"})
_HOPS = frozenset(
    {b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"te", b"upgrade"}
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Spent(OSError):
    """More was sent than a call may send or get."""


@dataclass(slots=True)
class Proxy:
    """`left` bytes may still pass; `refused` says of each host and port that was asked for in vain
    why. `credentials` are added to what is read where they hold.
    """

    destinations: Destinations
    left: int
    credentials: Credentials | None = None
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection. What fails ends it."""
        if len(self._open) >= _CONNECTIONS:
            writer.transport.abort()
            return
        self._idle.clear()
        self._open.add(writer)
        try:
            await self._answer(reader, writer)
        except* (
            OSError,
            EOFError,
            asyncio.LimitOverrunError,
            ValueError,
            RuntimeError,
            Refused,
            InvalidRequest,
            CallFailed,
        ):
            # The other side sees that the connection ended; why is in `refused`. To write to one
            # that is gone is a RuntimeError of uvloop's.
            pass
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
        origin = URL(f"https://{target.decode('ascii')}") if tunnel else url.origin()
        secure = (
            self.credentials.outside
            if tunnel and self.credentials and self.credentials.hold_at(origin)
            else None
        )
        try:
            upstream = await self._connect(url, secure)
        except (Refused, InvalidRequest, CallFailed) as error:
            if isinstance(error, Refused):
                self.refused[url.host or "", url.port or 0] = error.message
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            await writer.drain()
            return
        try:
            if secure:
                await self._read_for(origin, reader, writer, upstream)
                return
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                upstream[1].write(self._request(method, url, headers))
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(reader, upstream[1], self._spend), name="proxy-out")
                both.create_task(pump(upstream[0], writer, self._spend), name="proxy-in")
        finally:
            upstream[1].transport.abort()

    async def _read_for(
        self,
        origin: URL,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: Streams,
    ) -> None:
        """End the tunnel here: read one thing of `origin` with the operator's credential."""
        assert self.credentials  # noqa: S101 - who calls made sure
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.timeout(_HEAD_SECONDS):
            await writer.start_tls(self.credentials.inside(origin.host or ""))
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        if method in _READING:
            if not target.startswith(b"/"):
                raise ValueError("what is asked of a server is a path")
            upstream[1].write(
                self._request(
                    method, URL(f"{origin.origin()}{target.decode('ascii')}", encoded=True), headers
                )
            )
            await pump(upstream[0], writer, self._spend)
        else:
            writer.write(
                b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
        async with asyncio.timeout(_CLOSE_SECONDS):
            writer.close()
            await writer.wait_closed()

    def _request(self, method: bytes, url: URL, headers: bytes) -> bytes:
        """Return the head of a request that ends its connection, as the operator where a credential
        of theirs holds.
        """
        said = (
            self.credentials.authorization(url) if self.credentials and method in _READING else ""
        )
        dropped = _HOPS | {b"authorization", b"cookie"} if said else _HOPS
        kept = [
            line
            for line in headers.split(b"\r\n")
            if line.partition(b":")[0].strip().lower() not in dropped
        ]
        mine = [
            b"Connection: close",
            *([b"Authorization: " + said.encode("latin-1")] if said else []),
        ]
        return b"\r\n".join(
            (method + b" " + url.raw_path_qs.encode("ascii") + b" HTTP/1.1", *mine, *kept)
        )

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _Spent

    async def _connect(self, url: URL, secure: ssl.SSLContext | None) -> Streams:
        """Connect to an address of a host that may be reached. Raises `Refused`, `InvalidRequest`,
        `CallFailed`.
        """
        self.destinations.check(str(url.origin()))
        named = self.destinations.is_named(url)
        refused = failed = ""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                for about in await asyncio.get_running_loop().getaddrinfo(
                    url.host, url.port, type=socket.SOCK_STREAM
                ):
                    try:
                        opened = (
                            socket.socket(*about[:3])
                            if named
                            else self.destinations.open_socket(about)
                        )
                        return await _open_streams(opened, about[4], secure, url.host)
                    except Unreachable as error:
                        refused = refused or str(error)
                    except OSError as error:
                        failed = failed or str(error.strerror or error)
        except (OSError, UnicodeError) as error:  # no such name, or no answer in time
            raise CallFailed(f"{url.host} cannot be reached") from error
        if failed:
            raise CallFailed(f"{url.host} cannot be reached: {failed}")
        raise Refused(f"{url.host}: {refused or 'it has no address'}")


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spend: Callable[[int], None]
) -> None:
    """Pass on what comes until it ends. `spend` is told the size of each piece before; what it
    raises ends the passing.
    """
    while some := await reader.read(CHUNK):
        spend(len(some))
        writer.write(some)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _open_streams(
    opened: socket.socket, where: Any, secure: ssl.SSLContext | None, host: str | None
) -> Streams:
    opened.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(opened, where)
        return await asyncio.open_connection(
            sock=opened, limit=CHUNK, ssl=secure, server_hostname=host if secure else None
        )
    except BaseException:
        opened.close()
        raise


@asynccontextmanager
async def proxying(
    destinations: Destinations,
    listening: socket.socket,
    most: int,
    credentials: Credentials | None = None,
) -> AsyncIterator[Proxy]:
    """Serve a proxy on a socket that listens already, until the context ends; then no connection of
    it is left.
    """
    proxy = Proxy(destinations, most, credentials)
    server = await asyncio.start_server(proxy.serve, sock=listening, limit=CHUNK)
    try:
        yield proxy
    finally:
        server.close()
        for _ in range(
            _ACCEPTING
        ):  # what was accepted just now becomes a connection in a few rounds of the loop
            await asyncio.sleep(0)
        await proxy.close()


async def listener(ours: socket.socket) -> socket.socket:
    """Return the socket that was opened inside a sandbox and is handed out over `ours`. Raises
    `ConnectionError` where it ended.
    """
    ours.setblocking(False)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ours, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(ours)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise ConnectionError("the sandbox ended")
    listening = socket.socket(fileno=descriptors[0])
    listening.set_inheritable(False)  # a received descriptor is inheritable
    listening.setblocking(False)
    return listening
