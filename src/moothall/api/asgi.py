"""An ASGI server on uvicorn's HTTP protocol, with limits for each connection and a
graceful stop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import TimerHandle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from moothall import telemetry
from moothall.errors import ConfigurationError

log = telemetry.get_logger(__name__)

MAX_BODY_BYTES = 4_000_000
_BACKLOG = 1024
_NO_LOGS = logging.CRITICAL + 1
_DRAIN_POLL_SECONDS = 0.02
_CLEANUP_SECONDS = 5.0
"""Time for requests that are cancelled when the server stops to clean up."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits for connections. `head_seconds` counts from the connection's start, or the first byte
    after a response, to the end of a request's head. `keep_seconds` is the idle time after a
    response. `stall_seconds` is how long a client may read nothing of a response. Applications
    limit bodies by `body_bytes` and `body_seconds`, streams of server-sent events by `readers`, and
    other requests by `calls`.
    """

    connections: int = 4096
    readers: int = 2000
    calls: int = 256
    head_bytes: int = 16_384
    head_seconds: float = 20.0
    keep_seconds: float = 75.0
    stall_seconds: float = 60.0
    grace_seconds: float = 1.0
    body_bytes: int = MAX_BODY_BYTES
    body_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address to listen on. `port` None means `default`; if that is taken, nothing is served.
    `service` and `section` name the service and its settings in messages.
    """

    service: str
    section: str
    host: str
    port: int | None
    default: int


class ClientConnection(HttpToolsProtocol):
    """A connection with limits that uvicorn does not have: for the size and duration of heads, and
    for clients that do not read their response.
    """

    def __init__(self, config: Config, state: ServerState, limits: ServerLimits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._timers: dict[str, TimerHandle] = {}
        self._idle = False
        self._in_head, self._head = True, 0

    def _set_timer(self, name: str, seconds: float | None) -> None:
        """Abort the connection after `seconds`; None cancels the timer `name`."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Start the head timer, or abort if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._set_timer("head", self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        for name in tuple(self._timers):
            self._set_timer(name, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and refuse a head that is too large."""
        if self._idle:
            self._idle = False
            self._set_timer("head", self._limits.head_seconds)
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if (
            self._in_head
            and self._head > self._limits.head_bytes
            and not self.transport.is_closing()
        ):
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        """Begin a request. A head that is too large is answered like invalid HTTP."""
        if (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > self._limits.head_bytes
        ):
            raise ValueError("the head is too large")
        self._in_head, self._head, self._idle = False, 0, False
        self._set_timer("head", None)
        self.server_state.default_headers[0] = (b"date", formatdate(usegmt=True).encode())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start to wait for the next request. All bytes that arrive now, also those of an unread
        body, must form a request in time.
        """
        super().on_response_complete()
        self._idle = self.cycle.response_complete  # otherwise a pipelined request is in progress

    def pause_writing(self) -> None:
        """Limit how long the client may read nothing, because the response stays in memory."""
        super().pause_writing()
        self._set_timer("answer", self._limits.stall_seconds)

    def resume_writing(self) -> None:
        """Cancel the timer of `pause_writing`."""
        super().resume_writing()
        self._set_timer("answer", None)


@asynccontextmanager
async def serve_asgi(
    app: ASGIApp,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve until the context ends. Yields the port; 0, after a log message, if the default port is
    taken.

    At the end, running requests get `limits.grace_seconds`. Raises `ConfigurationError` if a
    configured port cannot be bound. uvicorn's own server is not used because it takes over the
    process's signals, wakes ten times a second, and leaves cancelled tasks behind.
    """
    options: dict[str, Any] = {
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
        "reset_contextvars": True,
    }

    async def log_failures(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception:
            log.exception("an answer failed because of a bug", path=scope["path"])
            raise

    config = Config(
        log_failures,
        http=ClientConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=_NO_LOGS,  # uvicorn would log every client that disconnects
        timeout_keep_alive=round(limits.keep_seconds),
        **options,
    )
    config.load()
    _raise_file_limit(limits.connections)
    state = ServerState()
    state.default_headers = [(b"date", b""), (b"server", b"moothall")]
    server = await _listen(config, state, address, limits, context)
    try:
        yield server.sockets[0].getsockname()[1] if server else 0
    finally:
        if server:
            server.close()
        await _drain(state, limits.grace_seconds)


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of open files to twice the number of connections, as far as allowed."""
    import resource  # missing on Windows, which has no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 2 * connections if hard == resource.RLIM_INFINITY else min(hard, 2 * connections)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


async def _listen(
    config: Config,
    state: ServerState,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None,
) -> asyncio.Server | None:
    port = address.default if address.port is None else address.port
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(config, state, limits),
            address.host,
            port,
            ssl=context,
            ssl_handshake_timeout=limits.head_seconds if context else None,
            backlog=_BACKLOG,
        )
    except OSError as error:
        reason = error.strerror or error
        problem = f"{address.service} cannot be served on {address.host}:{port}: {reason}"
        setting = f"{address.section}.port"
        if address.port is not None:
            raise ConfigurationError(
                f"{problem}; choose another {setting}, or 0 for any free one"
            ) from error
        log.warning(
            "a default port is taken; set another one, or 0 for any",
            setting=setting,
            reason=problem,
        )
        return None


async def _drain(state: ServerState, grace_seconds: float) -> None:
    """Wait for running requests, then cancel the rest."""
    for connection in tuple(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_seconds):
            while state.tasks or state.connections:  # noqa: ASYNC110 - uvicorn has no event for this; connections still send their responses
                await asyncio.sleep(_DRAIN_POLL_SECONDS)
    late = set(state.tasks)
    for task in late:
        task.cancel()
    for connection in tuple(state.connections):
        connection.transport.abort()
    if late:
        await asyncio.wait(late, timeout=_CLEANUP_SECONDS)
