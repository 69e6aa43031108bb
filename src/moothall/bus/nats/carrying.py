"""Bytes over plain subjects: for what is too much for the log and of no use once it was heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import nats.errors
from nats.aio.msg import Msg

from moothall.bus import registry
from moothall.bus.nats.connection import connection, log, translate_errors
from moothall.bus.nats.lean import LeanClient, heed_cancel
from moothall.config import Bus
from moothall.domain.topic import Channel
from moothall.errors import BusUnavailable

_LOOK = 1.0


class Carrying:
    """A connection that may publish and hear under the names of links, and needs to be allowed no more."""

    def __init__(self, client: LeanClient) -> None:
        self._client = client

    async def send(self, name: str, data: bytes) -> None:
        """Send to whoever listens under a name now. Raises `BusUnavailable`, `InvalidRequest`."""
        with translate_errors(f"carry to {name}"):
            self._client.put(registry.literal(Channel.LINK.of(name)), data)

    async def hear(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield what is sent under a name until closed. Raises `BusUnavailable` once the bus is closed."""
        arrived: asyncio.Queue[Msg] = asyncio.Queue()  # bounded by what its sender may have on the way
        with translate_errors(f"listen for {name}"):
            subscription = await self._client.hear(registry.literal(Channel.LINK.of(name)), arrived.put_nowait)
        try:
            while True:
                try:
                    async with asyncio.timeout(_LOOK):
                        message = await arrived.get()
                except TimeoutError:
                    if self._client.is_closed:
                        raise BusUnavailable(f"the bus was closed while {name} was listened to") from None
                    continue
                yield message.data
        finally:
            try:
                await self._client.unhear(subscription)
            except nats.errors.Error as error:
                log.debug("unsubscribing failed", subject=name, reason=str(error))


@asynccontextmanager
async def open_carrying(settings: Bus, url: str) -> AsyncIterator[Carrying]:
    """Connect for bytes alone. Raises `BusUnavailable`, `ConfigurationError`."""
    async with connection(settings, url, on_lost=lambda: None) as client:
        carrying = Carrying(client)
        yield carrying
        with translate_errors("close"):
            await heed_cancel(client.flush())
