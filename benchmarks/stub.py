"""A model server that is no bottleneck: a process of its own, HTTP/1.1 by hand on uvloop, answers
cut to size beforehand.

    async with running_stub() as stub:
        await stub.set(delay_ms=50)
        ... stub.base_url ...
        print(await stub.stats())

It speaks as much of `/v1/chat/completions` as clients need: whole answers and streams. Which answer
is asked for it
sees by the name of the reply schema and by the tools in the prompt; prompts are not parsed beyond
that.
No two answers about text are the same, so that there is always something to review.
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
    "item, writes down what came of it, and only then says that it is done; an item whose worker "
    "vanished comes again after half a minute. What was done twice is told by its key and dropped. "
    "Three figures are watched: the age of the oldest item, the share of repeats and the time of "
    "an item from end to end."
)


@dataclass(slots=True)
class Behaviour:
    """What the server does next. `pieces` is in how many chunks a streamed answer comes, spread
    over its delay.
    """

    delay: float = 0.0
    pieces: int = 1
    hold: bool = False
    calls: int = 0
    connections: int = 0
    gone: int = 0
    in_flight: int = 0
    peak: int = 0
    by_schema: dict[str, int] = field(default_factory=dict)
    held: list[tuple[Any, bytes]] = field(default_factory=list)


def _turn(call_id: bytes) -> str:
    """A seat with tools: looks, gets it wrong, mends it."""
    step = call_id.rpartition(b".")[2]
    seat = (
        call_id.split(b"/")[1].decode() if b"/" in call_id else "nobody"
    )  # no two patches alike: nobody is stopped early
    if step == b"1":
        return json.dumps(
            {
                "thought": "look first",
                "actions": [{"tool": "files.read", "args": {"path": "src/utils.py"}}],
            }
        )
    if step == b"2":
        act = {"tool": "files.append", "args": {"path": "src/utils.py", "content": WRONG}}
    else:
        act = {
            "tool": "files.edit",
            "args": {
                "path": "src/utils.py",
                "old": WRONG.strip(),
                "new": f"{SOLVED.strip()}  # {seat}",
            },
        }
    return json.dumps({"thought": "do it", "actions": [act]})


def _answer(number: int, schema: bytes, body: bytes, call_id: bytes) -> str:
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
    prompt, output_text = len(body) // 4 + 1, len(text) // 4 + 1
    details = {"cached_tokens": prompt // 2}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output_text,
        "total_tokens": prompt + output_text,
        "prompt_tokens_details": details,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One client's connection, kept alive."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._behaviour.connections += 1
        self._transport = transport  # type: ignore[assignment]  # uvloop's own transports are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        del exc
        self._behaviour.gone += 1
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = int(found[1]) if (found := _LENGTH.search(head)) else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._request(head, body)

    def _request(self, head: bytes, body: bytes) -> None:
        line = head.partition(b"\r\n")[0].split(b" ")
        path = line[1] if len(line) > 1 else b""
        if path.endswith(b"/chat/completions"):
            self._chat(head, body)
        elif path.endswith(b"/models"):
            self._json({"object": "list", "data": [{"id": "stub", "object": "model"}]})
        elif path.startswith(b"/set?"):
            self._json(_set(self._behaviour, dict(parse_qsl(urlsplit(path.decode()).query))))
        elif path == b"/stats":
            self._json(_stats(self._behaviour))
        else:
            self._write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _chat(self, head: bytes, body: bytes) -> None:
        received = self._behaviour
        received.calls += 1
        received.in_flight += 1
        received.peak = max(received.peak, received.in_flight)
        schema = found[1] if (found := _SCHEMA.search(body)) else b""
        name = schema.decode() or "text"
        received.by_schema[name] = received.by_schema.get(name, 0) + 1
        call_id = found[1] if (found := _CALL.search(head)) else b""
        text = _answer(received.calls, schema, body, call_id)
        if _STREAM.search(body):
            self._stream(body, text)
        else:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
            whole = {
                "id": f"chat-{received.calls}",
                "object": "chat.completion",
                "created": 0,
                "model": "stub",
            }
            self._later(
                received.delay,
                self._end,
                self._whole({**whole, "choices": [choice], "usage": _usage(body, text)}),
            )

    def _stream(self, body: bytes, text: str) -> None:
        received = self._behaviour

        def delta(piece: str, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish}
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
        if received.pieces <= 1:
            self._later(received.delay, self._end, head + _chunk(delta(text) + last) + b"0\r\n\r\n")
            return
        step = -(-len(text) // received.pieces)
        pieces = [text[start : start + step] for start in range(0, len(text), step)]
        for place, piece in enumerate(pieces, 1):
            written = (head if place == 1 else b"") + _chunk(delta(piece))
            self._later(received.delay * place / len(pieces), self._write, written)
        self._later(received.delay, self._end, _chunk(last) + b"0\r\n\r\n")

    def _later(self, delay: float, act: Any, data: bytes) -> None:
        if self._behaviour.hold:
            self._behaviour.held.append((act, data))
        elif delay:
            asyncio.get_running_loop().call_later(delay, act, data)
        else:
            act(data)

    def _end(self, data: bytes) -> None:
        self._behaviour.in_flight -= 1
        self._write(data)

    def _whole(self, document: dict[str, Any]) -> bytes:
        data = json.dumps(document, separators=(",", ":")).encode()
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(data), data)
        )

    def _json(self, document: dict[str, Any]) -> None:
        self._write(self._whole(document))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _set(received: Behaviour, requested: dict[str, str]) -> dict[str, Any]:
    if "delay_ms" in requested:
        received.delay = float(requested["delay_ms"]) / 1000
    if "pieces" in requested:
        received.pieces = int(requested["pieces"])
    if "hold" in requested:
        received.hold = requested["hold"] == "1"
        if not received.hold:
            held, received.held = received.held, []
            for act, data in held:
                act(data)
    if "reset" in requested:
        received.calls = received.connections = received.peak = 0
        received.by_schema.clear()
    return _stats(received)


def _stats(received: Behaviour) -> dict[str, Any]:
    return {
        "calls": received.calls,
        "connections": received.connections,
        "gone": received.gone,
        "in_flight": received.in_flight,
        "peak": received.peak,
        "by_schema": received.by_schema,
    }


@dataclass(frozen=True, slots=True)
class Stub:
    """The running server, from outside."""

    pid: int
    root: str
    session: aiohttp.ClientSession

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible root."""
        return f"{self.root}/v1"

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    async def set(self, **received: float) -> dict[str, Any]:
        """Change `delay_ms`, `pieces` or `hold` (0, 1), or `reset` the counters; return the
        counters.
        """
        requested = "&".join(f"{name}={value:g}" for name, value in received.items())
        return await self._get(f"set?{requested}")

    async def stats(self) -> dict[str, Any]:
        """Calls, connections and those that are gone, what is in flight and was at most."""
        return await self._get("stats")

    async def _get(self, path: str) -> dict[str, Any]:
        async with self.session.get(f"{self.root}/{path}") as response:
            return dict(await response.json())


@asynccontextmanager
async def running_stub(host: str = "127.0.0.1") -> AsyncIterator[Stub]:
    """Start the server on a free port of an address of this machine, as a process of its own; it
    ends with the context.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.stub",
        host,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("asked for pipes")
    try:
        port = int(await process.stdout.readline())
        async with aiohttp.ClientSession() as session:
            yield Stub(process.pid, f"http://{host}:{port}", session)
    finally:
        process.stdin.close()
        await process.wait()


async def _serve(host: str) -> None:
    behaviour = Behaviour()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(behaviour), host, 0, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Whoever started us closes our stdin, or dies and the kernel closes it.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
