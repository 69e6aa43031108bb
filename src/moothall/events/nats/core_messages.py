"""Bytes over plain subjects: for what is too much for the log and of no use once it was heard."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from moothall.config import BusSettings
from moothall.domain.topic import Channel
from moothall.events import registry
from moothall.events.nats.connection import connection, translate_errors
from moothall.events.nats.fast_client import FastClient, heed_cancel
from moothall.events.nats.requests import messages


class CoreMessages:
    """A connection that may publish and hear under the names of links, and needs to be allowed no
    more.
    """

    def __init__(self, client: FastClient) -> None:
        self._client = client

    async def send(self, name: str, data: bytes) -> None:
        """Send to whoever listens under a name now. Raises `BusUnavailable`, `InvalidRequest`."""
        with translate_errors(f"carry to {name}"):
            self._client.put(registry.literal(Channel.LINK.of(name)), data)

    async def hear(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield what is sent under a name until closed. Raises `BusUnavailable` once the bus is
        closed.
        """
        async with aclosing(
            messages(self._client, registry.literal(Channel.LINK.of(name)))
        ) as arriving:
            async for message in arriving:  # as many wait as its sender may have on the way
                yield message.data


@asynccontextmanager
async def open_carrying(settings: BusSettings, url: str) -> AsyncIterator[CoreMessages]:
    """Connect for bytes alone. Raises `BusUnavailable`, `ConfigurationError`."""
    async with connection(settings, url, on_lost=lambda: None) as client:
        carrying = CoreMessages(client)
        yield carrying
        with translate_errors("close"):
            await heed_cancel(client.flush())
