"""Requests to another process over plain NATS messages: one request, one answer, nothing stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from moothall.errors import BusUnavailable, InvalidRequest, MoothallError
from moothall.events.codec import dump_json, load_json
from moothall.events.nats.connection import log, reason, translate_errors
from moothall.events.nats.fast_client import FastClient, MessageCallback
from moothall.events.nats.reply_inbox import ReplyInbox
from moothall.ports import Answerer

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
    """Whether the server reports that nobody listens on the subject."""
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
