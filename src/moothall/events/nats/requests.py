"""Requests to another process over plain NATS messages: one request, one answer, nothing stored.
One inbox for all answers of the server to a connection. Byte messages over plain NATS
subjects, for data that is too large for the log and need not be stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError

from moothall.config import BusSettings
from moothall.domain.event import Channel
from moothall.errors import BusUnavailable, InvalidRequest, MoothallError
from moothall.events import registry
from moothall.events.codec import dump_json, load_json
from moothall.events.nats.connection import connection, log, reason, translate_errors
from moothall.events.nats.fast_client import FastClient, MessageCallback, keep_cancellation
from moothall.ports import Answerer

# One inbox for all answers of the server to a connection.


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


# Requests to another process over plain NATS messages: one request, one answer, nothing stored.


_MAX_CONCURRENT = 16
_POLL_SECONDS = 1.0


async def ask(
    client: FastClient, acks: ReplyInbox, subject: str, request: Mapping[str, Any], seconds: float
) -> tuple[Mapping[str, Any], bytes]:
    """Return the answer to a request on `subject`. Raises `BusUnavailable` if nobody answers within
    `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            [answer] = await acks.ask(client, subject, dump_json(request), is_last=lambda _: True)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(f"nobody answered on {subject}: {reason(error)}") from error
    if _has_no_responder(answer):
        raise BusUnavailable(f"nobody answers on {subject}")
    return _parse(answer)


async def ask_all(
    client: FastClient, acks: ReplyInbox, subject: str, request: Mapping[str, Any], seconds: float
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield all answers on `subject`, until none has arrived for `seconds`. Raises
    `BusUnavailable`.
    """
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    inbox, token = acks.address(arrived.put_nowait)
    try:
        with translate_errors(f"ask on {subject}"):
            client.publish_nowait(subject, dump_json(request), reply=inbox)
        while True:
            try:
                async with asyncio.timeout(seconds):
                    answer = await arrived.get()
            except TimeoutError:
                return
            if _has_no_responder(answer):
                return
            yield _parse(answer)[0]
    finally:
        acks.forget(token)


def _has_no_responder(answer: Msg) -> bool:
    """Return whether the server reports that nobody listens on the subject."""
    return (answer.headers or {}).get("Status") == "503"


def _parse(answer: Msg) -> tuple[Mapping[str, Any], bytes]:
    line, _, body = answer.data.partition(b"\n")
    answer_fields = load_json(line)
    if not isinstance(answer_fields, Mapping):
        raise InvalidRequest(f"the answer on {answer.subject} is not a JSON object")
    return answer_fields, body


async def answer(
    client: FastClient, acks: ReplyInbox, subject: str, answerer: Answerer, queue: str
) -> None:
    """Answer requests until cancelled. Each request goes to one subscriber of `queue`, and is
    handled in its own task.
    """
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def handle(message: Msg) -> None:
        async with slots:
            try:
                request = load_json(message.data)
                reply, body = await answerer(request if isinstance(request, Mapping) else {})
                client.publish_nowait(message.reply, dump_json(reply) + b"\n" + body)
            except (MoothallError, nats.errors.Error, OSError) as error:
                log.debug("a request was not answered", subject=subject, reason=str(error))

    async with (
        subscribed(client, subject, arrived.put_nowait, acks=acks, queue=queue),
        asyncio.TaskGroup() as group,
    ):
        while True:
            message = await arrived.get()
            if message.reply:
                group.create_task(handle(message))


@asynccontextmanager
async def subscribed(
    client: FastClient,
    subject: str,
    callback: MessageCallback,
    *,
    acks: ReplyInbox | None = None,
    queue: str = "",
) -> AsyncIterator[None]:
    """Subscribe for the duration of the block, as `FastClient.listen` does. With `acks`, the server
    has registered the subscription when the block begins. Raises `BusUnavailable`.
    """
    with translate_errors(f"listen on {subject}"):
        subscription = await client.listen(subject, callback, queue=queue)
    try:
        if acks is not None:
            with translate_errors(f"listen on {subject}"):
                await acks.flush(client)
        yield
    finally:
        try:
            await client.stop_listening(subscription)
        except nats.errors.Error as error:
            log.debug("unsubscribing failed", subject=subject, reason=str(error))


async def messages(
    client: FastClient, subject: str, *, acks: ReplyInbox | None = None, limit: int = 0
) -> AsyncGenerator[Msg, None]:
    """Yield the messages on a subject until closed. While `limit` messages wait (0: no limit),
    further messages are dropped. Raises `BusUnavailable` once the bus is closed.
    """
    arrived: asyncio.Queue[Msg] = asyncio.Queue(limit)

    def enqueue(message: Msg) -> None:
        if arrived.full():
            log.warning("signal dropped: its listener is too slow", subject=message.subject)
        else:
            arrived.put_nowait(message)

    async with subscribed(client, subject, enqueue, acks=acks):
        while True:
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    message = await arrived.get()
            except TimeoutError:
                if client.is_closed:
                    raise BusUnavailable(
                        f"the bus was closed while {subject} was listened to"
                    ) from None
            else:
                yield message


# Byte messages over plain NATS subjects, for data that is too large for the log and need not be
# stored.


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
