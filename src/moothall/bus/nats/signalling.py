"""Plain NATS messages: hints that may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from moothall.bus.codec import load_json
from moothall.bus.nats.acks import Acks
from moothall.bus.nats.connection import log, translate_errors
from moothall.bus.nats.lean import LeanClient
from moothall.errors import BusUnavailable, InvalidRequest

_WAITING = 10_000
_LOOK = 1.0


async def listen(client: LeanClient, acks: Acks, subject: str) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield what is sent until closed; what isn't a JSON object is passed over. Raises `BusUnavailable` once closed."""
    arrived: asyncio.Queue[Msg] = asyncio.Queue(_WAITING)

    def on_message(message: Msg) -> None:
        if arrived.full():
            log.warning("signal dropped: its listener is too slow", subject=message.subject)
        else:
            arrived.put_nowait(message)

    with translate_errors(f"listen on {subject}"):
        subscription = await client.hear(subject, on_message)
    try:
        with translate_errors(f"listen on {subject}"):
            await acks.flush(client)
        while True:
            try:
                async with asyncio.timeout(_LOOK):
                    message = await arrived.get()
            except TimeoutError as error:
                if client.is_closed:
                    raise BusUnavailable(f"the bus was closed while {subject} was listened to") from error
                continue
            try:
                data = load_json(message.data)
            except InvalidRequest as error:
                log.warning("signal passed over", subject=message.subject, reason=error.message)
                continue
            if isinstance(data, Mapping):
                yield data
    finally:
        try:
            await client.unhear(subscription)
        except nats.errors.Error as error:
            log.debug("unsubscribing failed", subject=subject, reason=str(error))
