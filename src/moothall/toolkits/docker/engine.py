"""A client of the part of a container engine's HTTP API that is used, over its Unix socket."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moothall.concurrency import read_body
from moothall.errors import CallFailed, ConfigurationError, InvalidRequest, NotFound

if TYPE_CHECKING:  # 8 MB, imported by the first call
    import aiohttp

_MAX_REPLY_BYTES = 8_000_000
_CHUNK = 65_536
_FRAME_HEADER_BYTES = 8
_NOT_FOUND, _FIRST_ERROR, _FIRST_SERVER_ERROR = 404, 400, 500


def socket_path(host: str) -> str:
    """Return the path in a setting such as unix:///var/run/docker.sock. Raises
    `ConfigurationError`.
    """
    path = host.removeprefix("unix://")
    if path == host or not path.startswith("/"):
        raise ConfigurationError(f"docker.host {host!r} must be unix:// and the path of a socket")
    return path


class DockerEngine:
    """A session with an engine."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response before its body is read. Raises `NotFound`,
        `InvalidRequest` and `CallFailed` with the engine's reason.
        """
        import aiohttp

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
                if response.status >= _FIRST_ERROR:
                    raise _refusal(response.status, await _read_body(response))
                yield response
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(
                "the container engine does not answer (docker.host); `moothall doctor` shows "
                "details"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(
                f"the connection to the container engine broke ({type(error).__name__})"
            ) from error

    async def call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Return the JSON of a response, None for an empty one. Raises what `stream` raises."""
        async with self.stream(method, path, query=query, body=body) as response:
            raw = await _read_body(response)
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError as error:
            raise CallFailed("the container engine did not answer with JSON") from error

    async def read_output(
        self,
        method: str,
        path: str,
        max_bytes: int,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> tuple[str, bool]:
        """Return the output of a container, both streams in the order of arrival, and whether it
        was truncated to `max_bytes`.
        """
        output, truncated = bytearray(), False
        async with self.stream(method, path, query=query, body=body) as response:
            async for piece in _frames(response.content):
                if truncated:
                    continue  # the end of the response is the end of the command
                output += piece
                if len(output) > max_bytes:
                    truncated = True
                    del output[max_bytes:]
        return output.decode(errors="replace"), truncated


@asynccontextmanager
async def open_engine(host: str) -> AsyncIterator[DockerEngine]:
    """Open a session with an engine."""
    import aiohttp

    connector = aiohttp.UnixConnector(socket_path(host), force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield DockerEngine(session)


def quote_name(text: str) -> str:
    """Quote a name for use in a path."""
    return quote(text, safe="")


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = await read_body(response.content.readexactly, _MAX_REPLY_BYTES)
    if body is None:
        raise CallFailed("the container engine sent a response over the size limit")
    return body


async def _frames(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the content of the frames of a stream, without their headers."""
    while True:
        try:
            header = await content.readexactly(_FRAME_HEADER_BYTES)
        except EOFError:
            return
        remaining = int.from_bytes(header[4:])
        while remaining and (piece := await content.read(min(remaining, _CHUNK))):
            remaining -= len(piece)
            yield piece


def _refusal(status: int, raw: bytes) -> Exception:
    try:
        reason = str(json.loads(raw)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        reason = f"status {status}"
    if status == _NOT_FOUND:
        return NotFound(f"the engine: {reason}")
    return (
        InvalidRequest(f"the engine: {reason}")
        if status < _FIRST_SERVER_ERROR
        else CallFailed(f"the engine: {reason}")
    )
