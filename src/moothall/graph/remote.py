"""Query the embedded graph of another process, over a Unix socket in the data directory (one
question per connection) or over the bus.

The mode of the folder (0700) protects the socket. Question and answer are one line of JSON each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from moothall.domain.event import Channel
from moothall.errors import BusUnavailable, GraphUnavailable, InvalidRequest, MoothallError
from moothall.graph.store import CypherGraph
from moothall.ports import Bus

_MAX_QUESTION_BYTES = 64 * 1024
_CONNECT_SECONDS, _RETRY_SECONDS = 5.0, 0.1
_MAX_PATH_BYTES = 100
"""The kernel's limit for the path of a socket, with a margin."""


@asynccontextmanager
async def serve_socket(graph: CypherGraph, path: Path) -> AsyncIterator[None]:
    """Answer questions on the Unix socket `path` for the duration of the block."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await _answer(graph, await reader.readline())
            writer.write(json.dumps(answer).encode())
            await writer.drain()
        except (OSError, ValueError):
            pass  # the client has disconnected, or its question was too long
        finally:
            writer.close()

    _remove(path)
    with _short_socket_path(path) as name:
        server = await asyncio.start_unix_server(serve, name, limit=_MAX_QUESTION_BYTES)
    async with server:
        try:
            yield
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _answer(graph: CypherGraph, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise InvalidRequest("a request must be an object with `question` and `parameters`")
        if request.get("counts"):
            return {"rows": [await graph.counts()]}
        if request.get("position"):
            return {"rows": [{"seq": await graph.position()}]}
        return {
            "rows": list(
                await graph.ask(str(request.get("question")), **(request.get("parameters") or {}))
            )
        }
    except MoothallError as error:
        return {"code": error.code, "message": error.message}
    except (ValueError, TypeError) as error:
        return {"code": InvalidRequest.code, "message": f"invalid request: {error}"}


class SocketGraphClient:
    """A client for the graph of another process. It waits up to `connect_seconds` for a process
    that is still starting.
    """

    def __init__(self, path: Path, connect_seconds: float = _CONNECT_SECONDS) -> None:
        self._path = path
        self._connect_seconds = connect_seconds

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Ask a named question. Raises the errors of `CypherGraph.ask`."""
        rows: Sequence[Mapping[str, Any]] = (
            await self._send_request({"question": question, "parameters": parameters})
        )["rows"]
        return rows

    async def counts(self) -> dict[str, int]:
        """Return the numbers of nodes and relations."""
        rows: Sequence[dict[str, int]] = (await self._send_request({"counts": True}))["rows"]
        return rows[0]

    async def _send_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        if len(line) > _MAX_QUESTION_BYTES:
            raise InvalidRequest(
                f"the question has {len(line)} bytes; the limit is {_MAX_QUESTION_BYTES}"
            )
        try:
            reader, writer = await self._connect()
            try:
                writer.write(line)
                answer: dict[str, Any] = json.loads(await reader.read())
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except (OSError, ValueError) as error:
            raise GraphUnavailable(
                f"the process that has the graph open did not answer: {error}"
            ) from error
        return _read_answer(answer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(1 + int(self._connect_seconds / _RETRY_SECONDS)):
            try:
                with _short_socket_path(self._path) as name:
                    return await asyncio.open_unix_connection(name)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_RETRY_SECONDS)
        raise GraphUnavailable(
            "the process that has the graph open does not answer; it may be starting or ending. "
            "Try again"
        )


GRAPH_TOPIC = Channel.GRAPH.of("embedded")
_MAX_ANSWER_BYTES = 900_000
"""The limit for an answer, so that it fits into a message."""


async def serve_bus(bus: Bus, graph: CypherGraph) -> None:
    """Answer questions on the bus until cancelled."""

    async def answer(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        reply = json.dumps(await _answer(graph, json.dumps(request).encode())).encode()
        if len(reply) > _MAX_ANSWER_BYTES:
            message = (
                f"the answer has {len(reply)} bytes, which is too much for a message; request "
                "less, or set graph.url"
            )
            reply = json.dumps({"code": InvalidRequest.code, "message": message}).encode()
        return {}, reply

    await bus.answer(GRAPH_TOPIC, answer)


class BusGraphClient:
    """A client for the graph of the process that answers on the bus."""

    def __init__(self, bus: Bus, timeout_seconds: float) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Ask a named question. Raises the errors of `CypherGraph.ask`."""
        return await self._rows({"question": question, "parameters": parameters})

    async def position(self) -> int:
        """Return the seq up to which the other process has projected the log."""
        return int((await self._rows({"position": True}))[0]["seq"])

    async def _rows(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        try:
            _, reply = await self._bus.ask(GRAPH_TOPIC, request, self._timeout_seconds)
        except BusUnavailable as error:
            raise GraphUnavailable(
                "no process serves the graph; start `moothall serve` with the role graph"
            ) from error
        rows: Sequence[Mapping[str, Any]] = _read_answer(json.loads(reply))["rows"]
        return rows


def _read_answer(answer: dict[str, Any]) -> dict[str, Any]:
    if "rows" in answer:
        return answer
    if answer.get("code") == InvalidRequest.code:
        raise InvalidRequest(str(answer.get("message")))
    raise GraphUnavailable(str(answer.get("message")))


@contextmanager
def _short_socket_path(path: Path) -> Iterator[str]:
    """Yield a path that is short enough for a socket. Deep folders are addressed by descriptor."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
