"""Requests to another process of the same machine, over a Unix socket in the data directory: one
request per connection, and one line of JSON each for the request and its answer.

The mode of the folder (0700) protects the socket.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

MAX_REQUEST_BYTES = 64 * 1024
_MAX_PATH_BYTES = 100
"""The kernel's limit for the path of a socket, with a margin."""


@asynccontextmanager
async def serve_requests(
    path: Path, answer: Callable[[bytes], Awaitable[Mapping[str, Any]]]
) -> AsyncIterator[None]:
    """Answer requests on the Unix socket `path` for the duration of the block."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await answer(await reader.readline())
            writer.write(json.dumps(reply).encode())
            await writer.drain()
        except (OSError, ValueError):
            pass  # the client has disconnected, or its request was too long
        finally:
            writer.close()

    _remove(path)
    with _short_path(path) as name:
        server = await asyncio.start_unix_server(serve, name, limit=MAX_REQUEST_BYTES)
    async with server:
        try:
            yield
        finally:
            _remove(path)


async def send_request(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the process that serves the Unix socket `path`.

    Raises `FileNotFoundError` or `ConnectionRefusedError` if no process serves it, another
    `OSError` if the connection breaks, and `ValueError` if the answer is not a JSON object.
    """
    with _short_path(path) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        answer = json.loads(await reader.read())
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004 - as for malformed JSON
    return answer


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path that is short enough for a socket. Deep folders are addressed by descriptor."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
