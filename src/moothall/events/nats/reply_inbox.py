"""One inbox for all answers of the server to a connection."""

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
    """One inbox for the answers to everything that a connection sends, so that no request needs its
    own subscription and timer.

    The client's own `publish` waits for one answer at a time with a timer each, and its
    `publish_async` drops refusals (a full store looks like silence).
    """

    _callbacks: dict[str, Callable[[Msg], None]] = field(default_factory=dict)
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)
    _number: int = 0
    _inbox: str = ""

    @asynccontextmanager
    async def listening(self, client: FastClient) -> AsyncIterator[None]:
        """Receive answers for the duration of the block."""
        self._inbox = client.new_inbox()
        subscription = await client.listen(f"{self._inbox}.*", self._dispatch)
        try:
            yield
        finally:
            await client.stop_listening(subscription)

    def address(self, callback: Callable[[Msg], None]) -> tuple[str, str]:
        """Return a new address for answers, and its token for `forget`. `callback` is called with
        each answer.
        """
        self._number += 1
        token = str(self._number)
        self._callbacks[token] = callback
        return f"{self._inbox}.{token}", token

    def forget(self, token: str) -> None:
        """Receive no more answers at this address."""
        self._callbacks.pop(token, None)

    async def ask(
        self, client: FastClient, subject: str, data: bytes, *, is_last: Callable[[Msg], bool]
    ) -> list[Msg]:
        """Send a request and return all answers, up to the one for which `is_last` is true. There
        is no time limit. Raises the client's errors, also when the connection is lost.
        """
        answers: list[Msg] = []
        with self._fails_when_lost() as finished:

            def on_answer(message: Msg) -> None:
                answers.append(message)
                if is_last(message) and not finished.done():
                    finished.set_result(None)

            inbox, token = self.address(on_answer)
            try:
                client.publish_nowait(subject, data, reply=inbox)
                await finished
            finally:
                self.forget(token)
        return answers

    async def flush(self, client: FastClient) -> None:
        """Return once the server has received everything that was sent before.

        This sends a message to ourselves, since the client's own `flush` must not be cancelled: its
        answer would then silently end the client's reading. Raises the client's errors, also when
        the connection is lost, and `TimeoutError`.
        """
        with self._fails_when_lost() as finished:
            inbox, token = self.address(
                lambda _: None if finished.done() else finished.set_result(None)
            )
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    client.publish_nowait(inbox)
                    await finished
            finally:
                self.forget(token)

    @contextmanager
    def _fails_when_lost(self) -> Iterator[asyncio.Future[None]]:
        """Provide a future that fails when the connection is lost, and the answer with it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            yield future
        finally:
            self._waiting.discard(future)

    def connection_lost(self) -> None:
        """Fail the waiting requests; their callers know how to try again."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(nats.errors.ConnectionReconnectingError())

    def _dispatch(self, message: Msg) -> None:
        callback = self._callbacks.get(message.subject.rpartition(".")[2])
        if callback is not None:
            callback(message)


def parse_seq(message: Msg) -> int:
    """Return the seq under which the server stored a message. Raises the client's error if it
    refused.
    """
    if message.headers and message.headers.get("Status") == "503":
        raise NoStreamResponseError
    answer = orjson.loads(message.data)
    if "error" in answer:
        raise APIError.from_error(answer["error"])
    return int(answer["seq"])
