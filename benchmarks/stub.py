"""A fast stub model server in a separate process: minimal HTTP/1.1 on uvloop, with prepared
replies.

    async with running_stub() as stub:
        await stub.set(delay_ms=50)
        ... stub.base_url ...
        print(await stub.stats())

It implements `/v1/chat/completions` as far as clients need it, with and without streaming. The name
of the reply schema and the tools in the prompt determine the reply; nothing else of a prompt is
parsed. No two replies on text are the same, so that there is always something to review.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import psutil
import uvloop

SOLVED = '\n\ndef hello_world():\n    """Return the greeting."""\n    return "Hello, World!"\n'
WRONG = '\n\ndef hello_world():\n    return "Goodbye"\n'

_SCHEMA = re.compile(rb'"name": ?"(turn|review|approaches|probe)"')
_STREAM = re.compile(rb'"stream": ?true')
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d+)", re.IGNORECASE)
_CALL = re.compile(rb"\r\nx-request-id: ?([^\r]+)", re.IGNORECASE)
_PROSE = (
    "The queue is bounded and its bound is a setting: a full one answers at once with a status "
    "that callers know, so that they slow down before anything is lost. Each worker takes one "
    "item, writes down the result of it, and only then says that it is done; an item whose worker "
    "vanished comes again after half a minute. A repeated item is found by its key and is dropped. "
    "Three figures are watched: the age of the oldest item, the share of repeats and the time of "
    "an item from end to end."
)


@dataclass(slots=True)
class StubState:
    """The settings and counters of the server.

    chunks: the number of chunks of a streamed reply, distributed over its delay.
    hold: replies are stored in `held` until released.
    """

    delay: float = 0.0
    chunks: int = 1
    hold: bool = False
    calls: int = 0
    connections: int = 0
    disconnections: int = 0
    in_flight: int = 0
    peak: int = 0
    by_schema: dict[str, int] = field(default_factory=dict)
    held_responses: list[tuple[Any, bytes]] = field(default_factory=list)


def _turn(call_id: bytes) -> str:
    """Return a turn of a seat with tools: it reads the file, writes a wrong solution, and repairs
    it.
    """
    step = call_id.rpartition(b".")[2]
    # The seat makes each patch unique, so that no seat is stopped early.
    seat = call_id.split(b"/")[1].decode() if b"/" in call_id else "none"
    if step == b"1":
        return json.dumps(
            {
                "thought": "read first",
                "actions": [{"tool": "files.read", "args": {"path": "src/utils.py"}}],
            }
        )
    if step == b"2":
        action = {"tool": "files.append", "args": {"path": "src/utils.py", "content": WRONG}}
    else:
        action = {
            "tool": "files.edit",
            "args": {
                "path": "src/utils.py",
                "old": WRONG.strip(),
                "new": f"{SOLVED.strip()}  # {seat}",
            },
        }
    return json.dumps({"thought": "do it", "actions": [action]})


def _reply(number: int, schema: bytes, body: bytes, call_id: bytes) -> str:
    match schema:
        case b"turn" if b"files.append" in body:
            return _turn(call_id)
        case b"turn":
            return json.dumps({"thought": "written", "finish": f"Design {number}. {_PROSE}"})
        case b"review":
            comment = (
                "It says what happens when the queue is full; it does not say who watches the "
                "figures."
            )
            return json.dumps({"comment": comment, "met": [], "unmet": [1], "score": number % 11})
        case b"approaches":
            return json.dumps(
                {"approaches": [f"the plain way number {i} of doing it" for i in range(1, 4)]}
            )
        case b"probe":
            return '{"wet": true}'
    return f"Design {number}. {_PROSE}"


def _usage(body: bytes, text: str) -> dict[str, Any]:
    prompt_tokens, completion_tokens = len(body) // 4 + 1, len(text) // 4 + 1
    details = {"cached_tokens": prompt_tokens // 2}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": details,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """A kept-alive connection of one client."""

    def __init__(self, state: StubState) -> None:
        self._state = state
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self._state.connections += 1
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the disconnection."""
        del exc
        self._state.disconnections += 1
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Handle each complete request."""
        self._buffer = self._buffer + data if self._buffer else data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end]
            length = int(match[1]) if (match := _LENGTH.search(head)) else 0
            if len(self._buffer) < head_end + 4 + length:
                return
            body = self._buffer[head_end + 4 : head_end + 4 + length]
            self._buffer = self._buffer[head_end + 4 + length :]
            self._request(head, body)

    def _request(self, head: bytes, body: bytes) -> None:
        line = head.partition(b"\r\n")[0].split(b" ")
        path = line[1] if len(line) > 1 else b""
        if path.endswith(b"/chat/completions"):
            self._chat(head, body)
        elif path.endswith(b"/models"):
            self._json({"object": "list", "data": [{"id": "stub", "object": "model"}]})
        elif path.startswith(b"/set?"):
            self._json(_set(self._state, dict(parse_qsl(urlsplit(path.decode()).query))))
        elif path == b"/stats":
            self._json(_stats(self._state))
        else:
            self._write_data(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _chat(self, head: bytes, body: bytes) -> None:
        state = self._state
        state.calls += 1
        state.in_flight += 1
        state.peak = max(state.peak, state.in_flight)
        schema = match[1] if (match := _SCHEMA.search(body)) else b""
        name = schema.decode() or "text"
        state.by_schema[name] = state.by_schema.get(name, 0) + 1
        call_id = match[1] if (match := _CALL.search(head)) else b""
        text = _reply(state.calls, schema, body, call_id)
        if _STREAM.search(body):
            self._stream(body, text)
        else:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
            document = {
                "id": f"chat-{state.calls}",
                "object": "chat.completion",
                "created": 0,
                "model": "stub",
            }
            self._later(
                state.delay,
                self._finish_call,
                self._response({**document, "choices": [choice], "usage": _usage(body, text)}),
            )

    def _stream(self, body: bytes, text: str) -> None:
        state = self._state

        def delta(text: str, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
            return _event({"object": "chat.completion.chunk", "model": "stub", "choices": [choice]})

        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"\r\n"
        )
        usage = _event(
            {
                "object": "chat.completion.chunk",
                "model": "stub",
                "choices": [],
                "usage": _usage(body, text),
            }
        )
        last = delta("", "stop") + usage + b"data: [DONE]\n\n"
        if state.chunks <= 1:
            self._later(
                state.delay, self._finish_call, head + _chunk(delta(text) + last) + b"0\r\n\r\n"
            )
            return
        step = -(-len(text) // state.chunks)
        parts = [text[start : start + step] for start in range(0, len(text), step)]
        for number, part in enumerate(parts, 1):
            data = (head if number == 1 else b"") + _chunk(delta(part))
            self._later(state.delay * number / len(parts), self._write_data, data)
        self._later(state.delay, self._finish_call, _chunk(last) + b"0\r\n\r\n")

    def _later(self, delay: float, write: Any, data: bytes) -> None:
        if self._state.hold:
            self._state.held_responses.append((write, data))
        elif delay:
            asyncio.get_running_loop().call_later(delay, write, data)
        else:
            write(data)

    def _finish_call(self, data: bytes) -> None:
        self._state.in_flight -= 1
        self._write_data(data)

    def _response(self, document: dict[str, Any]) -> bytes:
        data = json.dumps(document, separators=(",", ":")).encode()
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(data), data)
        )

    def _json(self, document: dict[str, Any]) -> None:
        self._write_data(self._response(document))

    def _write_data(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _set(state: StubState, settings: dict[str, str]) -> dict[str, Any]:
    if "delay_ms" in settings:
        state.delay = float(settings["delay_ms"]) / 1000
    if "chunks" in settings:
        state.chunks = int(settings["chunks"])
    if "hold" in settings:
        state.hold = settings["hold"] == "1"
        if not state.hold:
            responses, state.held_responses = state.held_responses, []
            for write, data in responses:
                write(data)
    if "reset" in settings:
        state.calls = state.connections = state.peak = 0
        state.by_schema.clear()
    return _stats(state)


def _stats(state: StubState) -> dict[str, Any]:
    return {
        "calls": state.calls,
        "connections": state.connections,
        "disconnections": state.disconnections,
        "in_flight": state.in_flight,
        "peak": state.peak,
        "by_schema": state.by_schema,
    }


@dataclass(frozen=True, slots=True)
class Stub:
    """A client of the running server."""

    pid: int
    root: str
    session: aiohttp.ClientSession

    @property
    def base_url(self) -> str:
        """The base URL of the OpenAI-compatible API."""
        return f"{self.root}/v1"

    def cpu(self) -> float:
        """Return the CPU seconds of the server so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    async def set(self, **settings: float) -> dict[str, Any]:
        """Change `delay_ms`, `chunks` or `hold` (0, 1), or `reset` the counters; return the
        counters.
        """
        query = "&".join(f"{name}={value:g}" for name, value in settings.items())
        return await self._get_document(f"set?{query}")

    async def stats(self) -> dict[str, Any]:
        """Return the counters of calls and connections, and the calls in flight."""
        return await self._get_document("stats")

    async def _get_document(self, path: str) -> dict[str, Any]:
        async with self.session.get(f"{self.root}/{path}") as response:
            return dict(await response.json())


@asynccontextmanager
async def running_stub(host: str = "127.0.0.1") -> AsyncIterator[Stub]:
    """Run the server in a process for the duration of the context, on a free port of `host`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.stub",
        host,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("stdin or stdout is not a pipe")
    try:
        port = int(await process.stdout.readline())
        async with aiohttp.ClientSession() as session:
            yield Stub(process.pid, f"http://{host}:{port}", session)
    finally:
        process.stdin.close()
        await process.wait()


async def _serve(host: str) -> None:
    state = StubState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(state), host, 0, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    # The parent closes stdin at the end; if it is killed, the kernel does.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
