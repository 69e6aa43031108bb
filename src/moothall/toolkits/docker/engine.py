"""A container engine's own HTTP API over its Unix socket, as much of it as is used, and no more
read than is shown.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp

from moothall.concurrency import whole_body
from moothall.errors import CallFailed, ConfigurationError, InvalidRequest, NotFound

_ANSWER_BYTES = 8_000_000
_CHUNK = 65_536
_HEADER = 8
_MISSING, _WRONG, _SERVER = 404, 400, 500


def socket_of(host: str) -> str:
    """Return the path in a setting such as unix:///var/run/docker.sock. Raises
    `ConfigurationError`.
    """
    path = host.removeprefix("unix://")
    if path == host or not path.startswith("/"):
        raise ConfigurationError(f"docker.host {host!r} is not unix:// and the path of a socket")
    return path


class DockerEngine:
    """One session with an engine."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask, and yield the answer before it is read. Raises `NotFound`, `InvalidRequest`,
        `CallFailed` with the engine's reason.
        """
        params = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in (query or {}).items()
        }
        raw = isinstance(body, bytes)
        headers = (
            {"Content-Type": "application/x-tar" if raw else "application/json"}
            if body is not None
            else {}
        )
        data = io.BytesIO(body) if raw else None if body is None else json.dumps(body).encode()
        try:
            async with self._session.request(
                method, f"http://engine{path}", params=params, data=data, headers=headers
            ) as response:
                if response.status >= _WRONG:
                    raise _refusal(response.status, await _whole(response))
                yield response
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(
                "the container engine does not answer (docker.host); `moothall doctor` says more"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(
                f"the connection to the container engine broke ({type(error).__name__})"
            ) from error

    async def ask(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Return what an answer says, None for nothing. Raises as `stream` does."""
        async with self.stream(method, path, query=query, body=body) as response:
            raw = await _whole(response)
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError as error:
            raise CallFailed("the container engine answered with what is no JSON") from error

    async def read_output(
        self,
        method: str,
        path: str,
        most: int,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> tuple[str, bool]:
        """Return what a container said, both its streams as they came, and whether it was cut at
        `most` bytes.
        """
        kept, cut = bytearray(), False
        async with self.stream(method, path, query=query, body=body) as response:
            async for piece in _frames(response.content):
                if cut:
                    continue  # read on: the end of the answer is the end of the command
                kept += piece
                if len(kept) > most:
                    cut = True
                    del kept[most:]
        return kept.decode(errors="replace"), cut


@asynccontextmanager
async def engine_at(host: str) -> AsyncIterator[DockerEngine]:
    """Open a session with an engine."""
    connector = aiohttp.UnixConnector(socket_of(host), force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield DockerEngine(session)


def quote_name(text: str) -> str:
    """Return a name as it may stand in a path."""
    return quote(text, safe="")


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    whole = await whole_body(response.content.readexactly, _ANSWER_BYTES)
    if whole is None:
        raise CallFailed("the container engine answered with more than can be taken")
    return whole


async def _frames(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream in which each is led by its kind and its length."""
    while True:
        try:
            header = await content.readexactly(_HEADER)
        except EOFError:
            return
        left = int.from_bytes(header[4:])
        while left and (piece := await content.read(min(left, _CHUNK))):
            left -= len(piece)
            yield piece


def _refusal(status: int, raw: bytes) -> Exception:
    try:
        reason = str(json.loads(raw)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        reason = f"status {status}"
    if status == _MISSING:
        return NotFound(f"the engine: {reason}")
    return (
        InvalidRequest(f"the engine: {reason}")
        if status < _SERVER
        else CallFailed(f"the engine: {reason}")
    )
