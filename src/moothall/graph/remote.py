"""Asking the process that has the embedded graph open: a Unix socket in the data directory, one
question a connection, or the bus.

The folder's mode (0700) says who may ask there. A question and its answer are one line of JSON
each.
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

from moothall.domain.topic import Channel
from moothall.errors import BusUnavailable, GraphUnavailable, InvalidRequest, MoothallError
from moothall.graph.store import CypherGraph
from moothall.ports import Bus

_QUESTION_BYTES = 64 * 1024
_PATIENCE_SECONDS, _LOOK_SECONDS = 5.0, 0.1
_LONGEST_PATH = 100
"""What the kernel takes for a socket, with some to spare."""


@asynccontextmanager
async def answering(graph: CypherGraph, path: Path) -> AsyncIterator[None]:
    """Answer at `path` until the context ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await _answer(graph, await reader.readline())
            writer.write(json.dumps(answer).encode())
            await writer.drain()
        except (OSError, ValueError):
            pass  # who asked is gone, or asked more than a question may be long
        finally:
            writer.close()

    _remove(path)
    with _reachable(path) as name:
        server = await asyncio.start_unix_server(serve, name, limit=_QUESTION_BYTES)
    async with server:
        try:
            yield
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _answer(graph: CypherGraph, line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        if not isinstance(asked, dict):
            raise InvalidRequest("a question is an object with `question` and `parameters`")
        if asked.get("counts"):
            return {"rows": [await graph.counts()]}
        if asked.get("position"):
            return {"rows": [{"seq": await graph.position()}]}
        return {
            "rows": list(
                await graph.ask(str(asked.get("question")), **(asked.get("parameters") or {}))
            )
        }
    except MoothallError as error:
        return {"code": error.code, "message": error.message}
    except (ValueError, TypeError) as error:
        return {"code": InvalidRequest.code, "message": f"not a question: {error}"}


class SocketGraphClient:
    """The graph of another process. One that is still starting is waited for, up to `patience`
    seconds.
    """

    def __init__(self, path: Path, patience: float = _PATIENCE_SECONDS) -> None:
        self._path = path
        self._patience = patience

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Have a named question answered there. Raises what is raised there."""
        rows: Sequence[Mapping[str, Any]] = (
            await self._send({"question": question, "parameters": parameters})
        )["rows"]
        return rows

    async def counts(self) -> dict[str, int]:
        """Return how many nodes and relations there are."""
        rows: Sequence[dict[str, int]] = (await self._send({"counts": True}))["rows"]
        return rows[0]

    async def _send(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        line = json.dumps(asked).encode() + b"\n"
        if len(line) > _QUESTION_BYTES:
            raise InvalidRequest(
                f"a question is at most {_QUESTION_BYTES} bytes long; this one is {len(line)}"
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
        for _ in range(1 + int(self._patience / _LOOK_SECONDS)):
            try:
                with _reachable(self._path) as name:
                    return await asyncio.open_unix_connection(name)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_LOOK_SECONDS)
        raise GraphUnavailable(
            "the process that has the graph open does not answer; is it starting or ending? try "
            "again"
        )


QUESTIONS = Channel.GRAPH.of("embedded")
_ANSWER_BYTES = 900_000
"""What fits into a message."""


async def answer_on(bus: Bus, graph: CypherGraph) -> None:
    """Answer on the bus until cancelled."""

    async def answer(asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        said = json.dumps(await _answer(graph, json.dumps(asked).encode())).encode()
        if len(said) > _ANSWER_BYTES:
            wrong = (
                f"the answer has {len(said)} bytes and fits into no message; ask for less, or set "
                "graph.url"
            )
            said = json.dumps({"code": InvalidRequest.code, "message": wrong}).encode()
        return {}, said

    await bus.answer(QUESTIONS, answer)


class BusGraphClient:
    """The graph of the process that answers on the bus."""

    def __init__(self, bus: Bus, seconds: float) -> None:
        self._bus = bus
        self._seconds = seconds

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Have a named question answered there. Raises what is raised there."""
        return await self._rows({"question": question, "parameters": parameters})

    async def position(self) -> int:
        """Return the seq up to which the log is written there."""
        return int((await self._rows({"position": True}))[0]["seq"])

    async def _rows(self, asked: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        try:
            _, said = await self._bus.ask(QUESTIONS, asked, self._seconds)
        except BusUnavailable as error:
            raise GraphUnavailable(
                "no process writes the graph and answers; start `moothall serve` with the role "
                "graph"
            ) from error
        rows: Sequence[Mapping[str, Any]] = _read_answer(json.loads(said))["rows"]
        return rows


def _read_answer(answer: dict[str, Any]) -> dict[str, Any]:
    if "rows" in answer:
        return answer
    if answer.get("code") == InvalidRequest.code:
        raise InvalidRequest(str(answer.get("message")))
    raise GraphUnavailable(str(answer.get("message")))


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough: a deep folder is reached by its descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
