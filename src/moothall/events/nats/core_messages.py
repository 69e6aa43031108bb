"""Byte messages over plain NATS subjects, for data that is too large for the log and need not be
stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from moothall.config import BusSettings
from moothall.domain.topic import Channel
from moothall.events import registry
from moothall.events.nats.connection import connection, translate_errors
from moothall.events.nats.fast_client import FastClient, keep_cancellation
from moothall.events.nats.requests import messages


class CoreMessages:
    """A connection that may only publish and subscribe under the names of links."""

    def __init__(self, client: FastClient) -> None:
        self._client = client

    async def send(self, name: str, data: bytes) -> None:
        """Send to the current listeners of `name`. Raises `BusUnavailable`, `InvalidRequest`."""
        with translate_errors(f"carry to {name}"):
            self._client.publish_nowait(registry.literal(Channel.LINK.of(name)), data)

    async def listen(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the messages sent under `name` until closed. Raises `BusUnavailable` once the bus
        is closed.
        """
        async with aclosing(
            messages(self._client, registry.literal(Channel.LINK.of(name)))
        ) as arriving:
            async for message in arriving:  # unbounded: the sender limits unacknowledged bytes
                yield message.data


@asynccontextmanager
async def open_core_messages(settings: BusSettings, url: str) -> AsyncIterator[CoreMessages]:
    """Connect for byte messages only. Raises `BusUnavailable`, `ConfigurationError`."""
    async with connection(settings, url, on_lost=lambda: None) as client:
        core_messages = CoreMessages(client)
        yield core_messages
        with translate_errors("close"):
            await keep_cancellation(client.flush())
