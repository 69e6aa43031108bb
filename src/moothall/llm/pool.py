"""Kept connections to one model server: over TLS, and through a company's proxy where the
environment names one.
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

from aiohappyeyeballs import start_connection
from yarl import URL

from moothall import __version__, telemetry
from moothall.config import LlmSettings
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError
from moothall.llm.connection import Connection
from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed

log = telemetry.get_logger(__name__)

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_KEPT_SECONDS = 15.0
_EYEBALLS_SECONDS = 0.25
_GOOD = 200


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
