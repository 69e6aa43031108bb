"""Writes and the answers to them, many on their way at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError


@dataclass(slots=True)
class Acks:
    """One inbox for the answers to all writes of a connection.

    The client's own `publish` waits for one at a time with a timer each, and its `publish_async`
    drops refusals on the floor (a full store looks like silence).
    """

    _waiting: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    _number: int = 0
    _inbox: str = ""

    @asynccontextmanager
    async def listening(self, client: Client) -> AsyncIterator[None]:
        """Hear the answers meanwhile."""
        self._inbox = client.new_inbox()
        subscription = await client.subscribe(f"{self._inbox}.*", cb=self._hear)
        try:
            yield
        finally:
            if not client.is_closed:
                await subscription.unsubscribe()

    async def write(self, client: Client, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """Return the seq under which the server stored it. Raises the client's errors, also when the connection is lost."""
        self._number += 1
        token = str(self._number)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            await client.publish(subject, data, reply=f"{self._inbox}.{token}", headers=dict(headers) or None)
            return await answer
        finally:
            del self._waiting[token]

    def lost(self) -> None:
        """Fail what waits: its answer went down with the connection, and the writer knows how to try again."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(nats.errors.ConnectionReconnectingError())

    async def _hear(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject.rpartition(".")[2])
        if answer is None or answer.done():
            return
        try:
            answer.set_result(_seq_in(message))
        except nats.errors.Error as error:
            answer.set_exception(error)


def _seq_in(message: Msg) -> int:
    if (message.headers or {}).get("Status") == "503":
        raise NoStreamResponseError
    answer = json.loads(message.data)
    if "error" in answer:
        raise APIError.from_error(answer["error"])
    return int(answer["seq"])
