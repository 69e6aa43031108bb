"""Messages of an executor that hostile code has taken over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from moothall.errors import WorkspaceFailed
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack
from moothall.workspace.executor_connection import ExecutorConnection


@pytest.fixture
async def ends() -> AsyncIterator[
    tuple[ExecutorConnection, asyncio.StreamReader, asyncio.StreamWriter]
]:
    ours, theirs = socket.socketpair()
    link = await ExecutorConnection.create(ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    writer.write(pack({"id": 0, "status": "ready"}))
    await link.ready
    yield link, reader, writer
    link.close()
    writer.transport.abort()


async def test_late_answers_are_dropped_and_the_next_is_received(
    ends: tuple[ExecutorConnection, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    link, _, writer = ends
    for _ in range(50):
        number, answer = link.send({"op": "run"})
        answer.cancel()
        writer.write(pack({"id": number, "op": "call"}))
        writer.write(pack({"id": number, "status": "cancelled"}))
    number, answer = link.send({"op": "run"})
    writer.write(pack({"id": number, "status": "success"}))
    async with asyncio.timeout(20):
        assert (await answer)["status"] == "success"


async def test_an_executor_that_floods_the_host_is_disconnected(
    ends: tuple[ExecutorConnection, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    link, reader, writer = ends
    _, answer = link.send({"op": "run"})
    for number in range(200):
        writer.write(pack({"id": 1000 + number, "status": "success", "said": "x" * 1000}))
    async with asyncio.timeout(20):
        with pytest.raises(WorkspaceFailed, match="that answer no request"):
            await answer
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass


def test_a_message_with_too_many_parts_is_refused_before_parsing() -> None:
    body = b'{"id":1,"x":[' + b"[]," * 5_000_000 + b"0]}"
    with pytest.raises(ProtocolError, match="parts"):
        FrameReader().feed(len(body).to_bytes(4, "big") + body)
