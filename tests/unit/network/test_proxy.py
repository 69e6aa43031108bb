from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from moothall.network.destinations import Destinations
from moothall.network.proxy import Proxy, run_proxy


class Echo:
    """A server that echoes and records received data."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.heard.append(data)
            writer.write(data)
        writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    async with server:
        yield echo


@asynccontextmanager
async def run_test_proxy(
    *allow: str, max_bytes: int = 1_000_000
) -> AsyncIterator[tuple[Proxy, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    async with run_proxy(Destinations.read(allow, only=False), listening, max_bytes) as proxy:
        yield proxy, listening.getsockname()[1]


async def send_request(port: int, text: bytes, *, later_data: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            writer.write(text)
            if later_data:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(later_data)
            writer.write_eof()
            try:
                return await reader.read()
            except ConnectionError:
                return b""
    finally:
        writer.transport.abort()


async def test_the_proxy_connects_only_to_allowed_destinations() -> None:
    async with (
        echoing() as echo,
        echoing() as other_echo,
        run_test_proxy(f"127.0.0.1:{echo.port}") as (proxy, port),
    ):
        assert (
            await send_request(
                port,
                f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\n\r\n".encode(),
                later_data=b"hello",
            )
            == b"hello"
        )
        for host in (
            "127.0.0.1",
            "localhost",
            "127.1",
            "2130706433",
            "0x7f.1",
            "[::ffff:127.0.0.1]",
            "0.0.0.0",  # noqa: S104 - not bound
        ):
            response = await send_request(
                port, f"CONNECT {host}:{other_echo.port} HTTP/1.1\r\n\r\n".encode()
            )
            assert response.startswith(b"HTTP/1.1 403 "), host
        assert (
            await send_request(
                port, f"GET http://127.0.0.1:{other_echo.port}/ HTTP/1.1\r\n\r\n".encode()
            )
        ).startswith(b"HTTP/1.1 403 ")
        assert (other_echo.heard, ("localhost", other_echo.port) in proxy.refused) == ([], True)


async def test_plain_requests_are_forwarded_without_proxy_headers() -> None:
    async with echoing() as echo, run_test_proxy("127.0.0.0/8") as (_, port):
        request = (
            f"GET http://127.0.0.1:{echo.port}/a%20b?c=d HTTP/1.1\r\nHost: x\r\nProxy-Connection: "
            "keep-alive\r\nX-A: 1\r\n\r\n"
        )
        response = await send_request(port, request.encode())
        assert (
            response == b"GET /a%20b?c=d HTTP/1.1\r\nConnection: close\r\nHost: x\r\nX-A: 1\r\n\r\n"
        )


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        b"\xff\xff\r\n\r\n",
        b"CONNECT :x HTTP/1.1\r\n\r\n",
        b"a" * 70_000,
    ],
)
async def test_an_invalid_request_ends_the_connection(head: bytes) -> None:
    async with run_test_proxy() as (_, port):
        assert await send_request(port, head) == b""


async def test_the_transferred_bytes_are_limited() -> None:
    async with echoing() as echo, run_test_proxy("127.0.0.0/8", max_bytes=100_000) as (proxy, port):
        response = await send_request(
            port,
            f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\n\r\n".encode(),
            later_data=b"x" * 1_000_000,
        )
        assert len(response) <= 100_000
        assert proxy.bytes_left < 0


async def test_open_connections_end_with_the_proxy() -> None:
    async with echoing() as echo:
        async with run_test_proxy("127.0.0.0/8") as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
