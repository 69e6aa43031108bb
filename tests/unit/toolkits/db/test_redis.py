"""Internals of the client that the Redis tool relies on: a release that changes one fails here."""

from __future__ import annotations

import asyncio
from typing import Any

from moothall.toolkits.db import DbLimits
from moothall.toolkits.db.redis import _connect, _connection


async def test_replies_are_read_from_the_bounded_stream() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(b"+OK\r\n" * 8)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = _connection(
            f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", DbLimits()
        )
        await _connect(connection)
        parser: Any = connection._parser
        bytes_left_before = parser._stream._bytes_left
        await connection.send_command("PING")
        assert await connection.read_response() == b"OK"
        assert parser._stream._bytes_left < bytes_left_before, (
            "the client bypasses the bounded stream"
        )
        await connection.disconnect(nowait=True)
