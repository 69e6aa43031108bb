from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from typing import Any

import pytest
import pytest_asyncio

from moothall.config import BusSettings
from moothall.events.delivery import BusLimits
from moothall.events.nats.connection import connection
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from moothall.testing.bus import MemoryBus

AnyBus = MemoryBus | JetStreamBus
Opened = Callable[..., AbstractAsyncContextManager[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """One nats-server for the tests of a module: its URL."""
    async with embedded_server(BusSettings(), tmp_path_factory.mktemp("server") / "bus") as url:
        yield url


async def empty_server(url: str) -> str:
    """Delete all streams of a server, and return its URL."""
    async with connection(BusSettings(), url, on_lost=lambda: None) as client:
        js = client.jetstream()
        for stream in await js.streams_info():
            await js.delete_stream(stream.config.name or "")
    return url


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.e2e)])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Return a function that opens the bus under test with these settings and secrets."""
    url: str = "" if request.param == "memory" else request.getfixturevalue("server")

    @asynccontextmanager
    async def memory(
        settings: BusSettings, secrets: tuple[str, ...], limits: BusLimits
    ) -> AsyncIterator[AnyBus]:
        yield MemoryBus(settings, secrets, limits)

    @asynccontextmanager
    async def jetstream(
        settings: BusSettings, secrets: tuple[str, ...], limits: BusLimits
    ) -> AsyncIterator[AnyBus]:
        async with open_bus(
            settings, await empty_server(url), secrets=secrets, limits=limits
        ) as bus:
            yield bus

    def open_any(
        secrets: tuple[str, ...] = (), **options: Any
    ) -> AbstractAsyncContextManager[AnyBus]:
        names = {field.name for field in fields(BusLimits)} & set(options)
        limits = {"retry_seconds": 0.01} | {name: options.pop(name) for name in names}
        return (memory if request.param == "memory" else jetstream)(
            BusSettings(**options), secrets, BusLimits(**limits)
        )

    return open_any
