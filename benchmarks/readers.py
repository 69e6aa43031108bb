"""What it costs that many look at the board while councils run: the same load with and without
them, in turn, on one `serve`.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.load import many
from benchmarks.served import Served, served
from benchmarks.stub import Stub
from benchmarks.workload import text_act

_AT_ONCE, _DELAY_MS, _ROUNDS = 8, 50, 2
_EVERY = 5.0
"""Seconds between two things that happen on the board: all have heard of the first by then."""
_CONNECTING = 50
_STORY = {
    "title": "Export invoices as CSV",
    "brief": "As an accountant, I want a CSV file, so that I can book.",
    "ac": ["Given a month, when it is exported, then there is a file"],
}


@dataclass(slots=True)
class Board:
    """A story that is commented on, and how long it takes until all have heard of it."""

    http: aiohttp.ClientSession
    url: str
    token: str
    story: str = ""
    comment_count: int = 0
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    heard: dict[int, float] = field(default_factory=dict)
    began: float = 0.0
    waits: list[float] = field(default_factory=list)

    async def post(self, path: str, document: object) -> Any:
        """Call the JSON API."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Idempotency-Key": f"key-{time.monotonic_ns()}",
        }
        async with self.http.post(self.url + path, json=document, headers=headers) as answer:
            if answer.status >= 400:  # noqa: PLR2004 - HTTP's errors begin there
                raise RuntimeError(await answer.text())
            return await answer.json() if answer.content_length else None

    async def create_story(self, story: Mapping[str, object]) -> str:
        """Write a story; return its id."""
        return str((await self.post("/api/v1/stories", {**_STORY, **story}))["story_id"])

    async def listen(
        self, number: int, cookie: str, ready: asyncio.Event, changed: asyncio.Event
    ) -> None:
        """Read one browser's stream until cancelled; `changed` is set when something happened."""
        at = self.url.removeprefix("http://")
        host, _, port = at.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /changes HTTP/1.1\r\nHost: {at}\r\nCookie: {cookie}\r\n\r\n".encode())
        try:
            if b" 200 " not in (first := await reader.readline()):
                raise RuntimeError(f"reader {number} was answered {first!r}")
            while line := await reader.readline():
                if line.startswith(b": the board"):
                    ready.set()
                elif line.startswith(b"id: "):
                    self.heard.setdefault(number, time.perf_counter())
                    changed.set()
            raise RuntimeError(f"the stream of reader {number} ended")
        finally:
            writer.close()

    async def happen(self) -> None:
        """Say something on the board every so often, until cancelled."""
        while True:
            self.heard.clear()
            self.comment_count += 1
            self.began = time.perf_counter()
            await self.post(
                f"/api/v1/stories/{self.story}/comments",
                {"comment": f"comment {self.comment_count}"},
            )
            await asyncio.sleep(_EVERY)
            if self.readers:
                if len(self.heard) != len(self.readers):
                    raise RuntimeError(
                        f"{len(self.heard)} of {len(self.readers)} readers heard within {_EVERY:g} "
                        "s"
                    )
                self.waits += [when - self.began for when in self.heard.values()]


@asynccontextmanager
async def listening(
    board: Board, cookie: str, count: int, changed: Sequence[asyncio.Event] = ()
) -> AsyncIterator[None]:
    """Let so many readers listen, who came in groups; each sets its event when it hears that
    something `changed`.
    """
    changed = changed or [asyncio.Event() for _ in range(count)]
    for begin in range(0, count, _CONNECTING):
        group = [asyncio.Event() for _ in range(begin, min(begin + _CONNECTING, count))]
        board.readers += [
            asyncio.create_task(board.listen(number, cookie, ready, changed[number]))
            for number, ready in enumerate(group, begin)
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*(ready.wait() for ready in group))
    try:
        yield
        if gone := [task for task in board.readers if task.done()]:
            gone[0].result()
    finally:
        for task in board.readers:
            task.cancel()
        await asyncio.gather(*board.readers, return_exceptions=True)
        board.readers.clear()


async def readers(folder: Path, stub: Stub, count: int, deliberations: int) -> dict[str, Any]:
    """CPU of a deliberation with and without `count` readers, memory of each, and how long a word
    on the board takes to all of them.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    await stub.set(delay_ms=_DELAY_MS)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            served(folder / "data", stub.base_url, {"MOOTHALL_WEB__PORT": str(port)})
        )
        jar = aiohttp.CookieJar(unsafe=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
        board = Board(http, f"http://127.0.0.1:{port}", app.token)
        board.story = await board.create_story({})
        cookie = await sign_in(board)
        await many(text_act(app), 20, _AT_ONCE)
        found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        kilobytes = []
        for _ in range(_ROUNDS):
            found["without"].append(await _loaded(app, board, deliberations))
            before = app.system.held().pss["serve"]
            async with listening(board, cookie, count):
                kilobytes.append((app.system.held().pss["serve"] - before) / 1024 / count)
                found["with"].append(await _loaded(app, board, deliberations))
    waits = sorted(board.waits)
    return {
        "readers": count,
        "deliberations": deliberations,
        "kilobytes": kilobytes[0],
        "heard_p50": waits[len(waits) // 2],
        "heard_max": waits[-1],
        **{
            f"{name}_{what}": statistics.median(one[what] for one in runs)
            for name, runs in found.items()
            for what in runs[0]
        },
    }


async def sign_in(board: Board) -> str:
    """Sign a browser in; return its cookie."""
    headers = {"Origin": board.url}
    async with board.http.post(
        f"{board.url}/sign-in", data={"token": board.token}, headers=headers, allow_redirects=False
    ) as answer:
        [cookie] = answer.cookies.values()
    return f"{cookie.key}={cookie.value}"


async def _loaded(app: Served, board: Board, count: int) -> dict[str, float]:
    """Run deliberations while something happens on the board; return CPU ms and wall seconds of
    one.
    """
    happening = asyncio.create_task(board.happen())
    try:
        before, began = app.system.used(), time.perf_counter()
        await many(text_act(app), count, _AT_ONCE)
        seconds = time.perf_counter() - began
        used = app.system.used().since(before)
        if happening.done():
            happening.result()
    finally:
        happening.cancel()
        await asyncio.gather(happening, return_exceptions=True)
    return {
        "cpu": used.total * 1000 / count,
        "serve": used.cpu["serve"] * 1000 / seconds,
        "rate": count / seconds,
    }
