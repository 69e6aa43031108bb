"""The HTTP door's server: where it listens, and what it serves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

from aiohttp import web

from moothall import config, telemetry
from moothall.domain.identity import Principal
from moothall.errors import ConfigurationError
from moothall.services.doors import Doors
from moothall.services.identity import Bearers, is_loopback
from moothall.services.rest import edge
from moothall.services.rest.connections import Connections, quiet
from moothall.services.rest.state import OPEN_PATHS, StateRoutes
from moothall.services.rest.tools import ToolRoutes

log = telemetry.get_logger(__name__)

DEFAULT_PORT = 8080
_BACKLOG = 128


@asynccontextmanager
async def http_server(
    settings: config.Web, doors: Doors, tokens: Mapping[str, Principal], *, configured: bool
) -> AsyncIterator[int]:
    """Serve until the context ends; yields the port, 0 where the default one is taken, which is logged.

    `configured`: the tokens are the operator's own, not the one of the first run. Raises `ConfigurationError` for a chosen
    port that is taken, and on anything but loopback without TLS and configured tokens.
    """
    if not tokens or not all(tokens):
        raise ConfigurationError("the HTTP server needs a token that is not empty: set grpc.token")
    context = _tls(settings, configured=configured)
    connections = Connections(settings.head_seconds)
    application = web.Application(
        client_max_size=settings.body_bytes,
        middlewares=(
            connections.heard,
            edge.watched,
            edge.answering(settings.calls),
            edge.called_rightly(settings.host, settings.hosts),
            edge.identified(Bearers(tokens), OPEN_PATHS),
        ),
    )
    application.on_response_prepare.append(edge.plain_headers)
    application.add_routes(StateRoutes(doors.tasks, doors.checkup).routes())
    if doors.visits is not None:
        application.add_routes(ToolRoutes(doors.visits, doors.parking, doors.workflows).routes())
    # A request that dies with its client is cancelled, and its tool with it.
    runner = web.AppRunner(
        application, access_log=None, handler_cancellation=True, shutdown_timeout=settings.grace_seconds, logger=quiet()
    )
    await runner.setup()
    try:
        listening = await _listen(partial(connections.begun, cast("web.Server", runner.server)), settings, context)
        try:
            yield listening.sockets[0].getsockname()[1] if listening else 0
        finally:
            if listening:
                listening.close()
    finally:
        await runner.cleanup()


def _tls(settings: config.Web, *, configured: bool) -> ssl.SSLContext | None:
    """Return what TLS needs, or None for plain text on loopback."""
    if not is_loopback(settings.host) and not configured:
        raise ConfigurationError(f"web.host {settings.host} is no loopback address: set grpc.token or grpc.tokens_file")
    if settings.tls_cert is None and settings.tls_key is None:
        if not is_loopback(settings.host):
            raise ConfigurationError(
                f"web.host {settings.host} is no loopback address: set web.tls_cert and web.tls_key, or bind 127.0.0.1"
            )
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigurationError("web.tls_cert and web.tls_key belong together; only one of them is set")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"web.tls_cert and web.tls_key are no PEM certificate and its key: {error}") from error
    return context


async def _listen(
    begun: Callable[[], asyncio.BaseProtocol], settings: config.Web, context: ssl.SSLContext | None
) -> asyncio.Server | None:
    wanted = DEFAULT_PORT if settings.port is None else settings.port
    try:
        return await asyncio.get_running_loop().create_server(begun, settings.host, wanted, ssl=context, backlog=_BACKLOG)
    except OSError as error:
        said = f"HTTP cannot be served on {settings.host}:{wanted}: {error.strerror or error}"
        if settings.port is not None:
            raise ConfigurationError(f"{said}; choose another web.port, or 0 for any free one") from error
        log.warning("no HTTP door; set web.port to a free one, or to 0", reason=said)
        return None
