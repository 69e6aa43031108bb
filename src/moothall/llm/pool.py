"""A pool of connections to one model server, with TLS and the proxy of the environment.

A connection speaks HTTP/1.1. It sends one request and passes the response to a reader as bytes
arrive; httptools parses them. A response has one timer, and its reader belongs to one call: the
next call may get the connection before the coroutine of this call runs again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

from moothall import __version__, telemetry
from moothall.config import LlmSettings
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError
from moothall.llm.server_errors import Failed
from moothall.llm.stream import WholeResponseReader

log = telemetry.get_logger(__name__)

_OVERHEAD_BYTES = 65_536
_OVERHEAD_FACTOR = 64
"""The limit for all bytes outside the body (headers, chunk sizes, trailers) is a fixed size plus a
multiple of the body's size, since each chunk may hold a single byte.
"""
_REST_SECONDS = 1.0
_FINAL_STATUS = 200  # lower statuses are informational
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_MAX_IDLE_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_EYEBALLS_SECONDS = 0.25
_OK = 200


class Connection(asyncio.Protocol):
    """A reusable connection. It calls `release` when it is free for the next request. After
    `closed` is set, it cannot be used again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, release: Callable[[Connection], None]
    ) -> None:
        self.closed = False
        self.free_since = 0.0
        self._loop = loop
        self._release_connection = release
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: WholeResponseReader | None = None
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._idle_seconds = self._last_data = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._status = self._received_bytes = self._body_bytes = 0
        self._is_idle_limited = False

    async def send(
        self, request: bytes, reader: WholeResponseReader, *, until: float, idle_seconds: float
    ) -> None:
        """Send a request and return when `reader` has the response. `until` is a time of the loop,
        `idle_seconds` the longest pause between two pieces of a body.

        Raises `Failed`, `TimeoutError` at `until`, and the errors of the reader. Cancellation
        closes the connection.
        """
        if self.closed or self._transport is None:
            raise Failed("Server disconnected", at_once=True)
        done = self._done = self._loop.create_future()
        self._reader, self._until, self._idle_seconds = reader, until, idle_seconds
        self._status = self._received_bytes = self._body_bytes = 0
        self._headers, self._is_idle_limited = {}, False
        self._timer = self._loop.call_at(until, self._check_time)
        self._transport.write(request)
        try:
            await done
        except BaseException:
            if self._done is done:
                self.close()
            raise

    def close(self) -> None:
        """Abort the connection."""
        self.closed = True
        self._clear_request()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's own transports are no subclass

    def data_received(self, data: bytes) -> None:
        """Parse the data, and check the size of the overhead."""
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail_request(Failed(f"the response is not HTTP: {error}"))
            return
        overhead = self._received_bytes - self._body_bytes
        if self._done is None:
            if self._received_bytes:
                self.close()
        elif overhead > _OVERHEAD_BYTES + _OVERHEAD_FACTOR * self._body_bytes:
            self._fail_request(Failed(f"more than {_OVERHEAD_BYTES} bytes of headers"))
        elif self._last_data and not self._is_idle_limited and self._timer is not None:
            self._is_idle_limited = True
            self._timer.cancel()
            self._timer = self._loop.call_at(self._next_check(), self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the current request. A body without a length is complete here."""
        self.closed = True
        self._transport = None
        if not self._status:
            self._fail_request(
                Failed(
                    f"Server disconnected: {exc}" if exc else "Server disconnected", at_once=True
                )
            )
        elif exc is None and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.on_message_complete()
        else:
            self._fail_request(
                Failed(
                    f"Payload not completed: the connection was closed after {self._body_bytes} "
                    "bytes"
                )
            )

    def on_message_begin(self) -> None:
        """Close the connection on a response without a request: the next call must not read it."""
        if self._done is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Ignore trailers, which follow the body."""
        if not self._status:
            self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """Pass status and headers to the reader."""
        status = self._parser.get_status_code()
        if status < _FINAL_STATUS:  # the final response follows
            self._headers = {}
            return
        self._status, self._last_data = status, 0.0
        if self._reader is not None:
            try:
                self._reader.start(status, self._headers)
            except Exception as error:  # noqa: BLE001 - raised in `send`
                self._fail_request(error)

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body to the reader."""
        self._last_data = self._loop.time()
        self._body_bytes += len(data)
        if self._reader is None:
            return
        try:
            is_complete = self._reader.feed(data)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail_request(error)
            return
        if is_complete and self._timer is not None:
            # Only the end of the message is missing. The connection is useless if it does not come.
            self._reader = None
            self._timer.cancel()
            self._timer = self._loop.call_later(_REST_SECONDS, self.close)
            self._is_idle_limited = True
            _resolve_future(self._done, None)

    def on_message_complete(self) -> None:
        """Release the connection for the next request, then end this one."""
        if self._done is None or not self._status:
            return
        error: Exception | None = None
        if self._reader is not None:
            try:
                self._reader.finish()
            except Exception as failure:  # noqa: BLE001 - as above
                error = failure
        done = self._clear_request()
        if self._transport is None or not self._parser.should_keep_alive():
            self.close()
        else:
            self.free_since = self._loop.time()
            self._received_bytes = 0
            self._release_connection(self)
        _resolve_future(done, error)

    def _next_check(self) -> float:
        if not self._is_idle_limited:
            return self._until
        return min(self._until, self._last_data + self._idle_seconds)

    def _check_time(self) -> None:
        now = self._loop.time()
        if now >= self._until:
            self._fail_request(TimeoutError())
        elif self._is_idle_limited and now >= self._last_data + self._idle_seconds:
            self._fail_request(Failed(f"the server sent nothing for {self._idle_seconds:g} s"))
        else:
            self._timer = self._loop.call_at(self._next_check(), self._check_time)

    def _fail_request(self, error: Exception) -> None:
        done = self._clear_request()
        self.close()
        _resolve_future(done, error)

    def _clear_request(self) -> asyncio.Future[None] | None:
        if self._timer is not None:
            self._timer.cancel()
        done, self._done, self._reader, self._timer = self._done, None, None, None
        return done


def _resolve_future(future: asyncio.Future[None] | None, error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class ConnectionPool:
    """A pool of connections to one server, opened on demand; belongs to one event loop. `url` is
    the root of the API, without a key.
    """

    def __init__(self, settings: LlmSettings, url: URL, key: str | None) -> None:
        self.url = url
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._proxy = (
            None if url.host in _LOOPBACK else _find_proxy(url)
        )  # never use a proxy for the loopback
        self._headers = {
            "Host": url.host_port_subcomponent or "",
            "User-Agent": f"moothall/{__version__}",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }
        self._heads: dict[tuple[str, URL], bytes] = {}
        self._tls: ssl.SSLContext | None = None
        self._free: list[Connection] = []
        self._all: WeakSet[Connection] = WeakSet()

    async def request(
        self,
        method: str,
        url: URL,
        reader: WholeResponseReader,
        *,
        until: float,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        owns_work: Callable[[], bool] | None = None,
    ) -> None:
        """Send a request and return when `reader` has the response. `until` is a time of the loop.
        `owns_work` is called once a connection is open; if it returns False, nothing is sent and
        the call is cancelled.

        Raises `Failed` with the underlying error as its cause, `TimeoutError` at `until`, and the
        errors of the reader.
        """
        connection = self._find_free_connection() or await self._connect(until)
        if owns_work is not None and not owns_work():
            self._release_connection(connection)
            raise asyncio.CancelledError
        head = self._heads.get((method, url)) or self._build_head(method, url)
        extra = b"".join(_header_line(name, value) for name, value in (headers or {}).items())
        request = (
            b"%b%bContent-Length: %d\r\n\r\n%b" % (head, extra, len(body), body)
            if body
            else head + extra + b"\r\n"
        )
        idle_seconds = self._settings.idle_seconds
        await connection.send(request, reader, until=until, idle_seconds=idle_seconds)

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._all):
            connection.close()
        self._free.clear()

    def _find_free_connection(self) -> Connection | None:
        """Return the most recently used free connection. Close connections that were idle too
        long, because servers close them as well.
        """
        while self._free:
            connection = self._free.pop()
            idle_seconds = self._loop.time() - connection.free_since
            if not connection.closed and idle_seconds < _MAX_IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _release_connection(self, connection: Connection) -> None:
        oldest = self._free[0] if self._free else None
        if oldest is not None and (
            oldest.closed or self._loop.time() - oldest.free_since > _MAX_IDLE_SECONDS
        ):
            del self._free[0]
            oldest.close()
        self._free.append(connection)

    def _build_head(self, method: str, url: URL) -> bytes:
        target = str(url) if self._proxy is not None and url.scheme == "http" else url.raw_path_qs
        headers = self._headers | (
            {"Proxy-Authorization": authorization}
            if target[0] != "/" and (authorization := self._proxy_authorization())
            else {}
        )
        head = f"{method} {target} HTTP/1.1\r\n".encode() + b"".join(
            _header_line(name, value) for name, value in headers.items()
        )
        self._heads[method, url] = head
        return head

    async def _connect(self, until: float) -> Connection:
        seconds = _CONNECT_SECONDS
        remaining = until - self._loop.time()
        host, port = (self._proxy or self.url).host or "", (self._proxy or self.url).port or 0
        try:
            async with asyncio.timeout(min(seconds, remaining)):
                connection = await self._open_connection(host, port)
        except TimeoutError as error:
            if remaining <= seconds:
                raise
            raise Failed(f"no connection to {host}:{port} within {seconds:g} s") from error
        except OSError as error:  # includes TLS errors and names that cannot be resolved
            refused = isinstance(error, ConnectionRefusedError)
            reason = "connection refused" if refused else error.strerror or str(error)
            raise Failed(f"cannot connect to {host}:{port}: {reason}") from error
        self._all.add(connection)
        return connection

    async def _resolve_addresses(self, host: str, port: int) -> list[Any]:
        with contextlib.suppress(
            socket.gaierror
        ):  # an address needs no resolver thread, which starts late on a busy machine
            return socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def _open_connection(self, host: str, port: int) -> Connection:
        addresses = await self._resolve_addresses(host, port)
        tcp_socket = await start_connection(
            addresses, happy_eyeballs_delay=_EYEBALLS_SECONDS, loop=self._loop
        )
        tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(self._loop, self._release_connection)
        try:
            if self.url.scheme == "http":
                await self._loop.create_connection(lambda: connection, sock=tcp_socket)
                return connection
            if self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            if self._proxy is not None:
                await self._open_tunnel(tcp_socket)
            await self._loop.create_connection(
                lambda: connection, sock=tcp_socket, ssl=self._tls, server_hostname=self.url.host
            )
        except BaseException:
            tcp_socket.close()
            raise
        return connection

    async def _open_tunnel(self, tcp_socket: socket.socket) -> None:
        """Connect `tcp_socket` to the server through the proxy. Raise `OSError` if the proxy
        refuses.
        """
        address = f"{self.url.host_subcomponent}:{self.url.port}"
        authorization = self._proxy_authorization()
        request = b"CONNECT %b HTTP/1.1\r\n%b%b\r\n" % (
            address.encode(),
            _header_line("Host", address),
            _header_line("Proxy-Authorization", authorization) if authorization else b"",
        )
        await self._loop.sock_sendall(tcp_socket, request)
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: the next bytes belong to TLS
            piece = await self._loop.sock_recv(tcp_socket, 1)
            head += piece
            if not piece or len(head) > 65_536:  # noqa: PLR2004 - more than any proxy sends
                raise ConnectionError("the proxy did not answer")
        parts = head.split(maxsplit=2)
        if len(parts) < 2 or parts[1] != b"%d" % _OK:  # noqa: PLR2004 - version and status
            status_line = head.partition(b"\r")[0].decode(errors="replace")
            raise ConnectionError(f"the proxy answered: {one_line(status_line)}")

    def _proxy_authorization(self) -> str:
        """Return the Authorization header for the proxy; '' if its URL names no user."""
        if self._proxy is None or not self._proxy.user:
            return ""
        return (
            "Basic "
            + base64.b64encode(f"{self._proxy.user}:{self._proxy.password or ''}".encode()).decode()
        )


@asynccontextmanager
async def open_pool(settings: LlmSettings, base_url: str) -> AsyncIterator[ConnectionPool]:
    """Open a connection pool for the server at `base_url`. A key in the URL's user part
    (http://KEY@host/v1) is sent as bearer token unless the settings contain a key. Raises
    `ConfigurationError` for an invalid URL; sends no request yet.
    """
    try:
        url = URL(base_url.rstrip("/"))
    except ValueError as error:
        raise ConfigurationError(f"MOOTHALL_LLM__BASE_URL {base_url!r} is not a URL") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError(
            f"MOOTHALL_LLM__BASE_URL {base_url!r} is not an http or https URL such as "
            "http://127.0.0.1:8000/v1"
        )
    key = settings.api_key.get_secret_value() if settings.api_key else url.user
    pool = ConnectionPool(settings, url.with_user(None), key)
    try:
        yield pool
    finally:
        pool.close()


def _find_proxy(url: URL) -> URL | None:
    proxy_url = getproxies().get(url.scheme)
    if not proxy_url or proxy_bypass(url.host or ""):
        return None
    proxy = URL(proxy_url)
    if proxy.scheme != "http" or not proxy.host:
        log.warning(
            "the proxy in the environment is ignored: only http proxies are supported",
            url=str(url),
        )
        return None
    return proxy


def _header_line(name: str, value: str) -> bytes:
    if any(char in value for char in "\r\n\0"):
        raise ConfigurationError(
            f"the header {name} of a model call would contain a line break; check the key and the "
            "URL"
        )
    return f"{name}: {value}\r\n".encode()
