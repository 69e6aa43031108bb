"""The bus and the model server: configured ones, or the embedded defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from moothall.config import Settings


@asynccontextmanager
async def bus_url(settings: Settings) -> AsyncIterator[str]:
    """Yield the bus's URL."""
    if settings.bus.url:
        yield settings.bus.url
        return
    from moothall.bus.nats.server import embedded_server

    async with embedded_server(settings.bus, settings.data_dir / "bus") as url:
        yield url


@asynccontextmanager
async def model_url(settings: Settings, tell: Callable[[str], None]) -> AsyncIterator[str]:
    """Yield the model server's root URL once it can be called."""
    if settings.llm.base_url:
        yield settings.llm.base_url
        return
    from moothall.model.local import local_model_server

    async with local_model_server(settings.llm, settings.data_dir, tell) as url:
        yield url
