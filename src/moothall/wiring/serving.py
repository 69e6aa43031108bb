"""The HTTP door, as the settings want it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from moothall.config import Settings
from moothall.domain.identity import Principal
from moothall.services.doors import Doors
from moothall.services.rest.server import http_server


@asynccontextmanager
async def serving_http(settings: Settings, doors: Doors, tokens: Mapping[str, Principal]) -> AsyncIterator[int]:
    """Serve HTTP; yields the port, 0 where none is served. Raises `ConfigurationError`."""
    if not settings.web.enabled:
        yield 0
        return
    configured = settings.grpc.token is not None or settings.grpc.tokens_file is not None
    async with http_server(settings.web, doors, tokens, configured=configured) as port:
        yield port
