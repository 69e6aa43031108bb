"""A forward proxy: the only network access of a browser and of a repository's set-up. It connects
only to allowed destinations.

Each name is resolved once, here, and the proxy connects to the address that was checked. This
covers pages, their resources, redirects and websockets alike. The operator's credentials are added
here, outside the sandbox: a tunnel to a host with a credential ends in this process, which forwards
only read requests.
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
_READ_METHODS = frozenset({b"GET", b"HEAD"})
_HOP_HEADERS = frozenset(
    {b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"te", b"upgrade"}
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _TransferLimitReached(OSError):
    """A call transferred more bytes than it may."""


@dataclass(slots=True)
class Proxy:
    """A forward proxy. `bytes_left` bytes may still pass. `refused` maps each refused host and port
    to the reason. `credentials` are added to read requests that they cover.
    """

    destinations: Destinations
    bytes_left: int
    credentials: Credentials | None = None
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A failure ends it."""
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
            # The client sees that the connection ended; `refused` has the reason. uvloop raises a
            # RuntimeError for a write to a closed connection.
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
            raise ValueError("a proxy request must be for http:// or CONNECT")
        origin = URL(f"https://{target.decode('ascii')}") if tunnel else url.origin()
        tls = (
            self.credentials.upstream_context
            if tunnel and self.credentials and self.credentials.has_credential_for(origin)
            else None
        )
        try:
            upstream = await self._connect(url, tls)
        except (Refused, InvalidRequest, CallFailed) as error:
            if isinstance(error, Refused):
                self.refused[url.host or "", url.port or 0] = error.message
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            await writer.drain()
            return
        try:
            if tls:
                await self._serve_with_credential(origin, reader, writer, upstream)
                return
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                upstream[1].write(self._request(method, url, headers))
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    copy_stream(reader, upstream[1], self._count_bytes), name="proxy-out"
                )
                group.create_task(
                    copy_stream(upstream[0], writer, self._count_bytes), name="proxy-in"
                )
        finally:
            upstream[1].transport.abort()

    async def _serve_with_credential(
        self,
        origin: URL,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: Streams,
    ) -> None:
        """End the tunnel here: forward one read request to `origin` with the credential."""
        assert self.credentials  # noqa: S101 - checked by the caller
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.timeout(_HEAD_SECONDS):
            await writer.start_tls(self.credentials.server_context(origin.host or ""))
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        if method in _READ_METHODS:
            if not target.startswith(b"/"):
                raise ValueError("the request target must be a path")
            upstream[1].write(
                self._request(
                    method, URL(f"{origin.origin()}{target.decode('ascii')}", encoded=True), headers
                )
            )
            await copy_stream(upstream[0], writer, self._count_bytes)
        else:
            writer.write(
                b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
        async with asyncio.timeout(_CLOSE_SECONDS):
            writer.close()
            await writer.wait_closed()

    def _request(self, method: bytes, url: URL, headers: bytes) -> bytes:
        """Return the head of a request that closes its connection afterwards, with the operator's
        credential if one covers it.
        """
        authorization = (
            self.credentials.authorization(url)
            if self.credentials and method in _READ_METHODS
            else ""
        )
        dropped = _HOP_HEADERS | {b"authorization", b"cookie"} if authorization else _HOP_HEADERS
        kept_headers = [
            line
            for line in headers.split(b"\r\n")
            if line.partition(b":")[0].strip().lower() not in dropped
        ]
        added_headers = [
            b"Connection: close",
            *([b"Authorization: " + authorization.encode("latin-1")] if authorization else []),
        ]
        return b"\r\n".join(
            (
                method + b" " + url.raw_path_qs.encode("ascii") + b" HTTP/1.1",
                *added_headers,
                *kept_headers,
            )
        )

    def _count_bytes(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise _TransferLimitReached

    async def _connect(self, url: URL, tls: ssl.SSLContext | None) -> Streams:
        """Connect to an allowed address of a host. Raises `Refused`, `InvalidRequest`,
        `CallFailed`.
        """
        self.destinations.check(str(url.origin()))
        is_named = self.destinations.is_named(url)
        refused = failed = ""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                for address_info in await asyncio.get_running_loop().getaddrinfo(
                    url.host, url.port, type=socket.SOCK_STREAM
                ):
                    try:
                        opened = (
                            socket.socket(*address_info[:3])
                            if is_named
                            else self.destinations.open_socket(address_info)
                        )
                        return await _open_streams(opened, address_info[4], tls, url.host)
                    except Unreachable as error:
                        refused = refused or str(error)
                    except OSError as error:
                        failed = failed or str(error.strerror or error)
        except (OSError, UnicodeError) as error:  # no such name, or no answer in time
            raise CallFailed(f"{url.host} cannot be reached") from error
        if failed:
            raise CallFailed(f"{url.host} cannot be reached: {failed}")
        raise Refused(f"{url.host}: {refused or 'it has no address'}")


async def copy_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count_bytes: Callable[[int], None]
) -> None:
    """Copy a stream until it ends. `count_bytes` is called with the size of each chunk before it is
    written, and ends the copy by raising an exception.
    """
    while chunk := await reader.read(CHUNK):
        count_bytes(len(chunk))
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _open_streams(
    opened: socket.socket, address: Any, tls: ssl.SSLContext | None, host: str | None
) -> Streams:
    opened.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(opened, address)
        return await asyncio.open_connection(
            sock=opened, limit=CHUNK, ssl=tls, server_hostname=host if tls else None
        )
    except BaseException:
        opened.close()
        raise


@asynccontextmanager
async def run_proxy(
    destinations: Destinations,
    listening: socket.socket,
    max_bytes: int,
    credentials: Credentials | None = None,
) -> AsyncIterator[Proxy]:
    """Serve a proxy on a listening socket until the context ends, and close its connections."""
    proxy = Proxy(destinations, max_bytes, credentials)
    server = await asyncio.start_server(proxy.serve, sock=listening, limit=CHUNK)
    try:
        yield proxy
    finally:
        server.close()
        # A socket accepted just now becomes a connection after a few rounds of the event loop.
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)
        await proxy.close()


async def receive_listener(channel: socket.socket) -> socket.socket:
    """Return the listening socket that a sandbox opened and sends over `channel`. Raises
    `ConnectionError` if the sandbox ended.
    """
    channel.setblocking(False)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise ConnectionError("the sandbox ended")
    listening = socket.socket(fileno=descriptors[0])
    listening.set_inheritable(False)  # a received descriptor is inheritable
    listening.setblocking(False)
    return listening
