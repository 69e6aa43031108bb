"""Kept connections to one model server: over TLS, and through a company's proxy where the
environment names one.

A connection speaks HTTP/1.1. It sends one request and passes the response to its handler as bytes
arrive; httptools parses them. A response has one timer, and its handler belongs to one call: the
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
from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed

log = telemetry.get_logger(__name__)

_AROUND_BYTES = 65_536
_AROUND_SHARE = 64
"""So much may be around a body: head, sizes of chunks, trailers; and so many times the body, for
chunks of a byte.
"""
_REST_SECONDS = 1.0
_INFORMATIONAL = 200
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_KEPT_SECONDS = 15.0
_EYEBALLS_SECONDS = 0.25
_GOOD = 200


class Connection(asyncio.Protocol):
    """A connection that is kept. `release` is called when it is free for the next request, and
    `closed` says that it never will be.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, release: Callable[[Connection], None]
    ) -> None:
        self.closed = False
        self.free_since = 0.0
        self._loop = loop
        self._release = release
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._taker: WholeResponseReader | None = None
        self._answer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._idle = self._heard = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._status = self._received = self._body = 0
        self._watched = False

    async def ask(
        self, request: bytes, taker: WholeResponseReader, *, until: float, idle: float
    ) -> None:
        """Send a request, and return when `taker` has its answer. `until` is a time of the loop,
        `idle` the most seconds between two pieces of a body.

        Raises `Failed`, `TimeoutError` at `until`, and what the taker raises. Where this is
        cancelled the connection closes.
        """
        if self.closed or self._transport is None:
            raise Failed("Server disconnected", at_once=True)
        answer = self._answer = self._loop.create_future()
        self._taker, self._until, self._idle = taker, until, idle
        self._status = self._received = self._body = 0
        self._headers, self._watched = {}, False
        self._timer = self._loop.call_at(until, self._look)
        self._transport.write(request)
        try:
            await answer
        except BaseException:
            if self._answer is answer:
                self.close()
            raise

    def close(self) -> None:
        """End it at once."""
        self.closed = True
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's own transports are no subclass

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Failed(f"what arrived is not HTTP: {error}"))
            return
        if self._answer is None:
            if self._received:
                self.close()
        elif self._received - self._body > _AROUND_BYTES + _AROUND_SHARE * self._body:
            self._fail(Failed(f"more than {_AROUND_BYTES} bytes of headers"))
        elif self._heard and not self._watched and self._timer is not None:
            self._watched = True
            self._timer.cancel()
            self._timer = self._loop.call_at(min(self._until, self._heard + self._idle), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits; a body without a length ends here."""
        self.closed = True
        self._transport = None
        if not self._status:
            self._fail(
                Failed(
                    f"Server disconnected: {exc}" if exc else "Server disconnected", at_once=True
                )
            )
        elif exc is None and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.on_message_complete()
        else:
            self._fail(
                Failed(
                    f"Payload not completed: the connection was closed after {self._body} bytes of "
                    "it"
                )
            )

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for: the next call must not take it for its own."""
        if self._answer is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of an answer, or of the end of a body, where nobody needs it."""
        if not self._status:
            self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """Hand over the head."""
        status = self._parser.get_status_code()
        if status < _INFORMATIONAL:  # another follows
            self._headers = {}
            return
        self._status, self._heard = status, 0.0
        if self._taker is not None:
            try:
                self._taker.head(status, self._headers)
            except Exception as error:  # noqa: BLE001 - whoever waits hears it
                self._fail(error)

    def on_body(self, data: bytes) -> None:
        """Hand over a piece of the body."""
        self._heard = self._loop.time()
        self._body += len(data)
        if self._taker is None:
            return
        try:
            enough = self._taker.piece(data)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        if enough and self._timer is not None:
            # The rest is its end; where that does not come the connection is of no use.
            self._taker = None
            self._timer.cancel()
            self._timer = self._loop.call_later(_REST_SECONDS, self.close)
            self._watched = True
            _resolve(self._answer, None)

    def on_message_complete(self) -> None:
        """Be free for the next request, then tell whoever waits: its taker has all it needs."""
        if self._answer is None or not self._status:
            return
        error: Exception | None = None
        if self._taker is not None:
            try:
                self._taker.end()
            except Exception as found:  # noqa: BLE001 - as above
                error = found
        answer = self._forget()
        if self._transport is None or not self._parser.should_keep_alive():
            self.close()
        else:
            self.free_since = self._loop.time()
            self._received = 0
            self._release(self)
        _resolve(answer, error)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._until:
            self._fail(TimeoutError())
        elif self._watched and now >= self._heard + self._idle:
            self._fail(Failed(f"silence for {self._idle:g} s in the middle of an answer"))
        else:
            due = min(self._until, self._heard + self._idle) if self._watched else self._until
            self._timer = self._loop.call_at(due, self._look)

    def _fail(self, error: Exception) -> None:
        answer = self._forget()
        self.close()
        _resolve(answer, error)

    def _forget(self) -> asyncio.Future[None] | None:
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer, self._taker, self._timer = self._answer, None, None, None
        return answer


def _resolve(answer: asyncio.Future[None] | None, error: Exception | None) -> None:
    if answer is None or answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


class ConnectionPool:
    """Connections to the server of one URL, made as they are needed; belongs to one event loop.
    `url` is its root, without a key.
    """

    def __init__(self, settings: LlmSettings, url: URL, key: str | None) -> None:
        self.url = url
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._proxy = (
            None if url.host in _LOOPBACK else _proxy_of(url)
        )  # a company's proxy, but never for this machine
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

    async def ask(
        self,
        method: str,
        url: URL,
        taker: WholeResponseReader,
        *,
        until: float,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        ours: Callable[[], bool] | None = None,
    ) -> None:
        """Make one request of this server, and return when `taker` has its answer. `until` is a
        time of the loop; `ours` is asked when the connection stands, and where it says no nothing
        is sent and this ends as cancelled.

        Raises `Failed` with what is known as its cause, `TimeoutError` at `until`, and what the
        taker raises.
        """
        connection = self._take() or await self._connect(until)
        if ours is not None and not ours():
            self._give(connection)
            raise asyncio.CancelledError
        head = self._heads.get((method, url)) or self._head(method, url)
        more = b"".join(_header(name, value) for name, value in (headers or {}).items())
        request = (
            b"%b%bContent-Length: %d\r\n\r\n%b" % (head, more, len(body), body)
            if body
            else head + more + b"\r\n"
        )
        await connection.ask(request, taker, until=until, idle=self._settings.idle_seconds)

    def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._all):
            connection.close()
        self._free.clear()

    def _take(self) -> Connection | None:
        """Return the connection that was used last; drop those that were free for long, which
        servers close.
        """
        while self._free:
            connection = self._free.pop()
            if not connection.closed and self._loop.time() - connection.free_since < _KEPT_SECONDS:
                return connection
            connection.close()
        return None

    def _give(self, connection: Connection) -> None:
        oldest = self._free[0] if self._free else None
        if oldest is not None and (
            oldest.closed or self._loop.time() - oldest.free_since > _KEPT_SECONDS
        ):
            del self._free[0]
            oldest.close()
        self._free.append(connection)

    def _head(self, method: str, url: URL) -> bytes:
        target = str(url) if self._proxy is not None and url.scheme == "http" else url.raw_path_qs
        headers = self._headers | (
            {"Proxy-Authorization": word}
            if target[0] != "/" and (word := self._proxy_word())
            else {}
        )
        head = f"{method} {target} HTTP/1.1\r\n".encode() + b"".join(
            _header(name, value) for name, value in headers.items()
        )
        self._heads[method, url] = head
        return head

    async def _connect(self, until: float) -> Connection:
        seconds = self._settings.connect_seconds
        left = until - self._loop.time()
        host, port = (self._proxy or self.url).host or "", (self._proxy or self.url).port or 0
        try:
            async with asyncio.timeout(min(seconds, left)):
                connection = await self._open(host, port)
        except TimeoutError as error:
            if left <= seconds:
                raise
            raise Failed(
                f"Connection timeout to host {host}:{port}: {seconds:g} s "
                "(MOOTHALL_LLM__CONNECT_SECONDS)"
            ) from error
        except OSError as error:  # TLS and names that cannot be resolved among them
            raise Failed(f"Cannot connect to host {host}:{port} [{error}]") from error
        self._all.add(connection)
        return connection

    async def _addresses(self, host: str, port: int) -> list[Any]:
        with contextlib.suppress(
            socket.gaierror
        ):  # an address needs no resolver, and so no thread that a busy machine starts late
            return socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def _open(self, host: str, port: int) -> Connection:
        addresses = await self._addresses(host, port)
        opened = await start_connection(
            addresses, happy_eyeballs_delay=_EYEBALLS_SECONDS, loop=self._loop
        )
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(self._loop, self._give)
        try:
            if self.url.scheme == "http":
                await self._loop.create_connection(lambda: connection, sock=opened)
                return connection
            if self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            if self._proxy is not None:
                await self._tunnel(opened)
            await self._loop.create_connection(
                lambda: connection, sock=opened, ssl=self._tls, server_hostname=self.url.host
            )
        except BaseException:
            opened.close()
            raise
        return connection

    async def _tunnel(self, opened: socket.socket) -> None:
        """Have the proxy connect `opened` to the server. Raises `OSError` where it will not."""
        place = f"{self.url.host_subcomponent}:{self.url.port}"
        word = self._proxy_word()
        asked = b"CONNECT %b HTTP/1.1\r\n%b%b\r\n" % (
            place.encode(),
            _header("Host", place),
            _header("Proxy-Authorization", word) if word else b"",
        )
        await self._loop.sock_sendall(opened, asked)
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # a byte at a time: what follows belongs to TLS
            piece = await self._loop.sock_recv(opened, 1)
            head += piece
            if not piece or len(head) > 65_536:  # noqa: PLR2004 - no proxy says so much
                raise ConnectionError("the proxy did not answer")
        words = head.split(maxsplit=2)
        if len(words) < 2 or words[1] != b"%d" % _GOOD:  # noqa: PLR2004 - version and status
            said = head.partition(b"\r")[0].decode(errors="replace")
            raise ConnectionError(f"the proxy answered: {one_line(said)}")

    def _proxy_word(self) -> str:
        """Return the proxy's Authorization, empty where its URL names no user."""
        if self._proxy is None or not self._proxy.user:
            return ""
        return (
            "Basic "
            + base64.b64encode(f"{self._proxy.user}:{self._proxy.password or ''}".encode()).decode()
        )


@asynccontextmanager
async def open_pool(settings: LlmSettings, base_url: str) -> AsyncIterator[ConnectionPool]:
    """Yield what calls the server at `base_url`: a key in the URL's user part (http://KEY@host/v1)
    is sent as bearer token unless the settings hold one. Raises `ConfigurationError` for what is no
    URL; calls nobody yet.
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


def _proxy_of(url: URL) -> URL | None:
    named = getproxies().get(url.scheme)
    if not named or proxy_bypass(url.host or ""):
        return None
    proxy = URL(named)
    if proxy.scheme != "http" or not proxy.host:
        log.warning(
            "only http proxies are supported, and the one in the environment is passed over",
            url=str(url),
        )
        return None
    return proxy


def _header(name: str, value: str) -> bytes:
    if any(char in value for char in "\r\n\0"):
        raise ConfigurationError(
            f"the header {name} of a model call would hold a line break; look at the key and the "
            "URL"
        )
    return f"{name}: {value}\r\n".encode()
