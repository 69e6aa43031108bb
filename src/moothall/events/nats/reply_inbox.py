"""One inbox for all answers of the server to what a connection sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError

from moothall.events.nats.fast_client import FastClient

FLUSH_SECONDS = 10.0


@dataclass(slots=True)
class ReplyInbox:
    """One inbox for the answers to all that a connection asks: no subscription and no timer each.

    The client's own `publish` waits for one answer at a time with a timer each, and its
    `publish_async`
    drops refusals on the floor (a full store looks like silence).
    """

    _hearers: dict[str, Callable[[Msg], None]] = field(default_factory=dict)
    _lost: set[asyncio.Future[None]] = field(default_factory=set)
    _number: int = 0
    _inbox: str = ""

    @asynccontextmanager
    async def listening(self, client: FastClient) -> AsyncIterator[None]:
        """Hear the answers meanwhile."""
        self._inbox = client.new_inbox()
        subscription = await client.hear(f"{self._inbox}.*", self._hear)
        try:
            yield
        finally:
            await client.unhear(subscription)

    def address(self, hear: Callable[[Msg], None]) -> tuple[str, str]:
        """Return a new address for answers, and its token for `forget`. `hear` is called with each
        that comes.
        """
        self._number += 1
        token = str(self._number)
        self._hearers[token] = hear
        return f"{self._inbox}.{token}", token

    def forget(self, token: str) -> None:
        """Hear no more at this address."""
        self._hearers.pop(token, None)

    async def ask(
        self, client: FastClient, subject: str, data: bytes, *, last: Callable[[Msg], bool]
    ) -> list[Msg]:
        """Send a request and return all answers, up to the one for which `last` is true. Raises the
        client's
        errors, also when the connection is lost. Waits as long as it takes: bound it.
        """
        answers: list[Msg] = []
        with self._until_lost() as over:

            def hear(message: Msg) -> None:
                answers.append(message)
                if last(message) and not over.done():
                    over.set_result(None)

            inbox, token = self.address(hear)
            try:
                client.put(subject, data, reply=inbox)
                await over
            finally:
                self.forget(token)
        return answers

    async def flush(self, client: FastClient) -> None:
        """Return once the server has taken all that was sent before.

        A message to ourselves, for the client's own `flush` must not be cancelled: the answer to it
        then
        ends the client's reading without a word. Raises the client's errors, also when the
        connection is lost,
        and `TimeoutError`.
        """
        with self._until_lost() as over:
            inbox, token = self.address(lambda _: None if over.done() else over.set_result(None))
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    client.put(inbox)
                    await over
            finally:
                self.forget(token)

    @contextmanager
    def _until_lost(self) -> Iterator[asyncio.Future[None]]:
        """A future that fails when the connection is lost: its answer went down with it."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost.add(over)
        try:
            yield over
        finally:
            self._lost.discard(over)

    def connection_lost(self) -> None:
        """Fail what waits; whoever asked knows how to try again."""
        for over in self._lost:
            if not over.done():
                over.set_exception(nats.errors.ConnectionReconnectingError())

    def _hear(self, message: Msg) -> None:
        hear = self._hearers.get(message.subject.rpartition(".")[2])
        if hear is not None:
            hear(message)


def seq_in(message: Msg) -> int:
    """Return under which seq the server stored a message. Raises the client's error where it
    refused.
    """
    if message.headers and message.headers.get("Status") == "503":
        raise NoStreamResponseError
    answer = orjson.loads(message.data)
    if "error" in answer:
        raise APIError.from_error(answer["error"])
    return int(answer["seq"])
