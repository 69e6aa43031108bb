"""Serving an ASGI application on uvicorn's HTTP protocol: every connection has limits, and requests
under way may end.
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

_BACKLOG = 1024
_SILENT = logging.CRITICAL + 1
_GLANCE_SECONDS = 0.02
_LAST_SECONDS = 5.0
"""What requests that are cancelled at the end of the server get to clean up."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Of connections. `head_seconds` is from a connection's beginning, or its first byte after an
    answer, to the end of a request's head; `keep_seconds` how long it may ask for nothing after an
    answer; `stall_seconds` how long it may take nothing of one.
    """

    connections: int = 100
    head_bytes: int = 16_384
    head_seconds: float = 20.0
    keep_seconds: float = 75.0
    stall_seconds: float = 60.0
    grace_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen. `port` None: `default`, and nowhere if that is taken. `what` is served
    there, as section `section` says.
    """

    what: str
    section: str
    host: str
    port: int | None
    default: int


class ClientConnection(HttpToolsProtocol):
    """A client. uvicorn itself has no limit on heads, on the time that one takes, nor on a client
    that takes no answer.
    """

    def __init__(self, config: Config, state: ServerState, limits: ServerLimits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._timers: dict[str, TimerHandle] = {}
        self._idle = False
        self._in_head, self._head = True, 0

    def _allow(self, what: str, seconds: float | None) -> None:
        """Give the connection that long for something; None: it is done."""
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._allow("head", self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for what in tuple(self._timers):
            self._allow(what, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; of a head that has no end, only so many."""
        if self._idle:
            self._idle = False
            self._allow("head", self._limits.head_seconds)
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
        """Begin a request; a head that is too large is answered as any that is no HTTP."""
        if (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > self._limits.head_bytes
        ):
            raise ValueError("the head is too large")
        self._in_head, self._head, self._idle = False, 0, False
        self._allow("head", None)
        self.server_state.default_headers[0] = (b"date", formatdate(usegmt=True).encode())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Await the next head."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Whatever comes now, be it the rest of a body that nobody read, must become a request in
        time.
        """
        super().on_response_complete()
        self._idle = self.cycle.response_complete  # else one that was sent along is under way

    def pause_writing(self) -> None:
        """A client that takes nothing of its answer holds what the answer needs."""
        super().pause_writing()
        self._allow("answer", self._limits.stall_seconds)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._allow("answer", None)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve until the context ends; yields the port, 0 where the default one is taken, which is
    logged.

    Then requests under way get `limits.grace_seconds`. Raises `ConfigurationError` where a chosen
    port cannot be listened on. uvicorn's own server is not used: it takes the process's signals,
    wakes ten times a second, and leaves what it cancels behind.
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
            log.exception("an answer failed by a bug", path=scope["path"])
            raise

    config = Config(
        log_failures,
        http=ClientConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=_SILENT,  # it would tell of every client that goes away
        timeout_keep_alive=round(limits.keep_seconds),
        **options,
    )
    config.load()
    _make_room(limits.connections)
    state = ServerState()
    state.default_headers = [(b"date", b""), (b"server", b"moothall")]
    listening = await _listen(config, state, address, limits, context)
    try:
        yield listening.sockets[0].getsockname()[1] if listening else 0
    finally:
        if listening:
            listening.close()
        await _drain(state, limits.grace_seconds)


def _make_room(connections: int) -> None:
    """Let the process have as many files as connections, and as many again for all else, as far as
    it may.
    """
    import resource  # there is none on Windows, where there is no such limit either

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections if hard == resource.RLIM_INFINITY else min(hard, 2 * connections)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _listen(
    config: Config,
    state: ServerState,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None,
) -> asyncio.Server | None:
    wanted = address.default if address.port is None else address.port
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(config, state, limits),
            address.host,
            wanted,
            ssl=context,
            ssl_handshake_timeout=limits.head_seconds if context else None,
            backlog=_BACKLOG,
        )
    except OSError as error:
        said = (
            f"{address.what} cannot be served on {address.host}:{wanted}: {error.strerror or error}"
        )
        setting = f"{address.section}.port"
        if address.port is not None:
            raise ConfigurationError(
                f"{said}; choose another {setting}, or 0 for any free one"
            ) from error
        log.warning(
            "a default port is taken; set another one, or 0 for any", setting=setting, reason=said
        )
        return None


async def _drain(state: ServerState, grace_seconds: float) -> None:
    """Let requests end, and end those that do not."""
    for connection in tuple(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_seconds):
            while state.tasks or state.connections:  # noqa: ASYNC110 - uvicorn tells nobody; connections still send their answers
                await asyncio.sleep(_GLANCE_SECONDS)
    late = set(state.tasks)
    for task in late:
        task.cancel()
    for connection in tuple(state.connections):
        connection.transport.abort()
    if late:
        await asyncio.wait(late, timeout=_LAST_SECONDS)
