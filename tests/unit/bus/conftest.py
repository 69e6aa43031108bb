from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.bus.jetstream import JetStreamBus, open_bus
from moothall.bus.server import embedded_server
from moothall.config import Bus
from moothall.testing.bus import MemoryBus

AnyBus = MemoryBus | JetStreamBus
Opened = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["memory", "jetstream"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the bus under test, with settings and the operator's secrets as named."""

    @asynccontextmanager
    async def memory(settings: Bus, secrets: tuple[str, ...]) -> AsyncIterator[AnyBus]:
        yield MemoryBus(settings, secrets)

    @asynccontextmanager
    async def jetstream(settings: Bus, secrets: tuple[str, ...]) -> AsyncIterator[AnyBus]:
        async with embedded_server(settings, tmp_path / "bus") as url, open_bus(settings, url, secrets=secrets) as bus:
            yield bus

    def open_any(secrets: tuple[str, ...] = (), **settings: Any) -> AbstractAsyncContextManager[AnyBus]:
        return (memory if request.param == "memory" else jetstream)(Bus(retry_seconds=0.01, **settings), secrets)

    return open_any
