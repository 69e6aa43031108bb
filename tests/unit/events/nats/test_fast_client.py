"""Internals of the client that we rely on: a release that changes one fails here and is named."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from dataclasses import fields

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from moothall.events.nats.fast_client import FastClient


def test_the_client_has_the_fields_that_put_uses() -> None:
    client = Client()
    assert client._pending == []
    assert client._pending_data_size == 0
    assert client._max_pending_size == 0
    assert client._flush_queue is None
    assert isinstance(client._max_payload, int)
    assert {"in_msgs", "in_bytes", "out_msgs", "out_bytes", "reconnects"} <= client.stats.keys()
    assert isinstance(client.options, dict)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_process_msg", ["self", "sid", "subject", "reply", "data", "headers"]),
        ("_process_headers", ["self", "headers"]),
        ("_parse_header_lines", ["raw"]),
        (
            "subscribe",
            [
                "self",
                "subject",
                "queue",
                "cb",
                "future",
                "max_msgs",
                "pending_msgs_limit",
                "pending_bytes_limit",
            ],
        ),
    ],
)
def test_overridden_methods_have_the_expected_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(Client, name)).parameters) == parameters


def test_awaited_methods_are_coroutines() -> None:
    assert inspect.iscoroutinefunction(Client._process_msg)
    assert inspect.iscoroutinefunction(Client._process_headers)
    assert isinstance(inspect.getattr_static(Client, "_parse_header_lines"), staticmethod)


async def test_headers_are_read_by_our_own_parser() -> None:
    class Counting(FastClient):
        received = b""

        @staticmethod
        def _parse_header_lines(raw: bytes) -> dict[str, str]:
            Counting.received = raw
            return FastClient._parse_header_lines(raw)

    headers = await Counting()._process_headers(
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\n\r\n"
    )
    assert Counting.received
    assert headers == {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": "3"}


def test_the_flusher_uses_futures_and_the_pending_list() -> None:
    source = inspect.getsource(Client._flusher)
    assert "asyncio.Future = await self._flush_queue.get()" in source
    assert "writelines(self._pending" in source


async def test_a_subscription_has_its_id_and_its_queue() -> None:
    subscription = Subscription(Client(), id=7, subject="a")
    assert subscription._id == 7
    assert isinstance(subscription._pending_queue, asyncio.Queue)


def test_a_message_has_the_expected_fields() -> None:
    assert {"_client", "subject", "reply", "data", "headers", "_sid"} <= {
        field.name for field in fields(Msg)
    }


def test_the_client_is_imported_without_the_websocket_dependencies() -> None:
    program = (
        "import sys, moothall.events.nats, nats.aio.transport as t; print('aiohttp' in "
        "sys.modules, t.aiohttp)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout == "False None\n"
