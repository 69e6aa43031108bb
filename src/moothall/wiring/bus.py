"""The bus of a process: the only place that says which it is. A command opens that of the process which serves, or its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from moothall.bus.nats.jetstream import JetStreamBus as Bus
from moothall.bus.nats.jetstream import open_bus
from moothall.config import Settings
from moothall.errors import ConfigurationError
from moothall.wiring import lock

__all__ = ["Bus", "Tell", "bus_url", "found", "open_bus", "open_log"]

Tell = Callable[[str], None]
_ATTACH_SECONDS, _LOOK_SECONDS = 300.0, 0.1


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
async def open_log(settings: Settings, tell: Tell, *, alone: bool = True) -> AsyncIterator[Bus]:
    """The bus alone: of the process that serves, or, with `alone`, started for as long as this takes.

    Needs no Ray and no model.
    """
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(lock.hold(settings.data_dir))
            if not alone:
                raise ConfigurationError(
                    f"nothing is served on {settings.data_dir}; start `moothall serve`, or leave --follow out"
                )
            url = await stack.enter_async_context(bus_url(settings))
        except lock.Taken:
            url = (await found(settings, tell)).bus_url
        yield await stack.enter_async_context(open_bus(settings.bus, url))


async def found(settings: Settings, tell: Tell) -> lock.Address:
    """Wait until the process that holds the data directory says where it is."""
    told = False
    try:
        async with asyncio.timeout(_ATTACH_SECONDS):
            while (address := lock.find(settings.data_dir)) is None:
                if not told:
                    tell(f"another moothall is starting or ending on {settings.data_dir}; waiting for it")
                    told = True
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        raise ConfigurationError(
            f"another process holds {settings.data_dir} but does not say where it serves: it still starts, or hangs. Wait, end it, or set "
            "MOOTHALL_DATA_DIR to another folder"
        ) from error
    return address
