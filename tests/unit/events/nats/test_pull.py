"""A reader of a pull consumer waits without polling, and notices a change of the connection."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest

from moothall.concurrency import Capacity
from moothall.events.nats.connection import Pull
from moothall.events.nats.fast_client import FastClient

_CONSUMER = "reader"


class _Client(FastClient):
    """A client that records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.closed = False

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def is_closed(self) -> bool:
        return self.closed

    def publish_nowait(self, subject: str, data: bytes = b"", **_: object) -> None:
        del data
        assert subject.endswith(_CONSUMER)
        self.requests += 1


def _pull(client: FastClient) -> Pull:
    pull = Pull(client, "EVENTS", _CONSUMER, "inbox")
    client.readers.add(pull.wake)
    return pull


async def test_a_restored_connection_makes_the_reader_request_again() -> None:
    client = _Client()
    pull = _pull(client)
    reading = asyncio.create_task(pull.next(1))
    await asyncio.sleep(0)
    client.wake_readers()  # the connection is lost
    assert await reading is None
    reading = asyncio.create_task(pull.next(1))
    await asyncio.sleep(0)
    assert client.requests == 1  # the first request may still be open

    client.stats["reconnects"] += 1
    client.wake_readers()
    assert await reading is None
    reading = asyncio.create_task(pull.next(1))
    await asyncio.sleep(0)
    assert client.requests == 1 + 1
    reading.cancel()


async def test_a_closed_connection_ends_the_reader() -> None:
    client = _Client()
    reading = asyncio.create_task(_pull(client).next(1))
    await asyncio.sleep(0)
    client.closed = True
    client.wake_readers()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await reading


async def test_a_reader_is_woken_when_others_have_used_up_the_capacity() -> None:
    client, capacity = _Client(), Capacity(2)
    pull = _pull(client)
    with capacity.calls_when_full(pull.wake):
        capacity.hold()
        assert pull.arrived.empty()
        capacity.hold()
        assert await pull.next(1) is None
    capacity.release()
    capacity.hold()
    assert pull.arrived.empty()
