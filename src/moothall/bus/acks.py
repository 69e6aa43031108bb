"""Writes and the answers to them, many on their way at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError

from moothall.bus.heeding import heeding

FLUSH_SECONDS = 10.0


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
        subscription = await heeding(client.subscribe(f"{self._inbox}.*", cb=self._hear))
        try:
            yield
        finally:
            if not client.is_closed:
                await heeding(subscription.unsubscribe())

    async def write(self, client: Client, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """Return the seq under which the server stored it. Raises the client's errors, also when the connection is lost."""
        with self._awaited() as (inbox, answer):
            await heeding(client.publish(subject, data, reply=inbox, headers=dict(headers) or None))
            return await answer

    async def flush(self, client: Client) -> None:
        """Return once the server has taken all that was sent before.

        A message to ourselves, for the client's own `flush` must not be cancelled: the answer to it then
        ends the client's reading without a word. Raises the client's errors, also when the connection is lost,
        and `TimeoutError`.
        """
        with self._awaited() as (inbox, answer):
            async with asyncio.timeout(FLUSH_SECONDS):
                await heeding(client.publish(inbox, b'{"seq": 0}'))
                await answer

    @contextmanager
    def _awaited(self) -> Iterator[tuple[str, asyncio.Future[int]]]:
        """An address of its own for one answer."""
        self._number += 1
        token = str(self._number)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            yield f"{self._inbox}.{token}", answer
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
