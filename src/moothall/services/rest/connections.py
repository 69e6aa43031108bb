"""Connections of the HTTP door: those that ask for nothing are closed, and what they send instead is in no log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler


def quiet() -> logging.Logger:
    """Return aiohttp's logger for what is no HTTP: it would write down the bytes that it stumbled over, which may be a token.

    Faults of handlers never come to it: `edge.answering` tells them.
    """
    logger = logging.getLogger("moothall.services.rest.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


class Connections:
    """The connections of a server. Each has `seconds` for the head of its first request: who holds thousands open must ask."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}

    def begun(self, server: Callable[[], web.RequestHandler]) -> asyncio.BaseProtocol:
        """Return what speaks with a new connection."""
        protocol = server()
        self._silent[protocol] = asyncio.get_running_loop().call_later(self._seconds, self._close, protocol)
        return protocol

    @web.middleware
    async def heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has asked for something."""
        if (timer := self._silent.pop(request.protocol, None)) is not None:
            timer.cancel()
        return await handler(request)

    def _close(self, protocol: web.RequestHandler) -> None:
        self._silent.pop(protocol, None)
        protocol.force_close()
