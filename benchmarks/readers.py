"""Measure the cost of many readers of the board: the same deliberations with and without them, in
turn, on one `serve`.
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

from benchmarks.load import run_many
from benchmarks.server import Server, run_server
from benchmarks.stub import Stub
from benchmarks.workload import text_operation

_AT_ONCE, _DELAY_MS, _ROUNDS = 8, 50, 2
_CHANGE_SECONDS = 5.0
"""Seconds between two changes of the board, by which all readers must have received the first."""
_CONNECT_GROUP = 50
_STORY = {
    "title": "Export invoices as CSV",
    "brief": "As an accountant, I want a CSV file, so that I can book.",
    "ac": ["Given a month, when it is exported, then there is a file"],
}


@dataclass(slots=True)
class Board:
    """A story that gets comments, and the times at which readers are notified of them."""

    http: aiohttp.ClientSession
    url: str
    token: str
    story: str = ""
    comment_count: int = 0
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    notified: dict[int, float] = field(default_factory=dict)
    change_time: float = 0.0
    waits: list[float] = field(default_factory=list)

    async def post(self, path: str, document: object) -> Any:
        """Send a POST request to the JSON API, and return the document of the response."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Idempotency-Key": f"key-{time.monotonic_ns()}",
        }
        async with self.http.post(self.url + path, json=document, headers=headers) as response:
            if response.status >= 400:  # noqa: PLR2004 - the errors of HTTP
                raise RuntimeError(await response.text())
            return await response.json() if response.content_length else None

    async def create_story(self, story: Mapping[str, object]) -> str:
        """Create a story and return its id."""
        return str((await self.post("/api/v1/stories", {**_STORY, **story}))["story_id"])

    async def read_changes(
        self, number: int, cookie: str, is_connected: asyncio.Event, changed: asyncio.Event
    ) -> None:
        """Read the event stream of one browser until cancelled; set `changed` at each change."""
        address = self.url.removeprefix("http://")
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /changes HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        try:
            if b" 200 " not in (status_line := await reader.readline()):
                raise RuntimeError(f"reader {number} was refused: {status_line!r}")
            while line := await reader.readline():
                if line.startswith(b": the board"):
                    is_connected.set()
                elif line.startswith(b"id: "):
                    self.notified.setdefault(number, time.perf_counter())
                    changed.set()
            raise RuntimeError(f"the stream of reader {number} ended")
        finally:
            writer.close()

    async def change_repeatedly(self) -> None:
        """Comment on the story at an interval until cancelled."""
        while True:
            self.notified.clear()
            self.comment_count += 1
            self.change_time = time.perf_counter()
            await self.post(
                f"/api/v1/stories/{self.story}/comments",
                {"comment": f"comment {self.comment_count}"},
            )
            await asyncio.sleep(_CHANGE_SECONDS)
            if self.readers:
                if len(self.notified) != len(self.readers):
                    raise RuntimeError(
                        f"only {len(self.notified)} of {len(self.readers)} readers were notified "
                        f"within {_CHANGE_SECONDS:g} s"
                    )
                self.waits += [notified - self.change_time for notified in self.notified.values()]


@asynccontextmanager
async def connected_readers(
    board: Board, cookie: str, count: int, changed: Sequence[asyncio.Event] = ()
) -> AsyncIterator[None]:
    """Connect `count` readers, in groups. Each sets its event of `changed` at a notification."""
    changed = changed or [asyncio.Event() for _ in range(count)]
    for begin in range(0, count, _CONNECT_GROUP):
        group = [asyncio.Event() for _ in range(begin, min(begin + _CONNECT_GROUP, count))]
        board.readers += [
            asyncio.create_task(board.read_changes(number, cookie, is_connected, changed[number]))
            for number, is_connected in enumerate(group, begin)
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*(is_connected.wait() for is_connected in group))
    try:
        yield
        if ended := [task for task in board.readers if task.done()]:
            ended[0].result()
    finally:
        for task in board.readers:
            task.cancel()
        await asyncio.gather(*board.readers, return_exceptions=True)
        board.readers.clear()


async def measure_readers(
    folder: Path, stub: Stub, count: int, deliberations: int
) -> dict[str, Any]:
    """Return the CPU of a deliberation with and without `count` readers, the memory of a reader,
    and the time until the readers are notified of a change.
    """
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    await stub.set(delay_ms=_DELAY_MS)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            run_server(folder / "data", stub.base_url, {"MOOTHALL_WEB__PORT": str(port)})
        )
        jar = aiohttp.CookieJar(unsafe=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
        board = Board(http, f"http://127.0.0.1:{port}", app.token)
        board.story = await board.create_story({})
        cookie = await sign_in(board)
        await run_many(text_operation(app), 20, _AT_ONCE)
        figures: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        kilobytes = []
        for _ in range(_ROUNDS):
            figures["without"].append(await _measure_load(app, board, deliberations))
            before = app.system.memory_usage().pss["serve"]
            async with connected_readers(board, cookie, count):
                kilobytes.append((app.system.memory_usage().pss["serve"] - before) / 1024 / count)
                figures["with"].append(await _measure_load(app, board, deliberations))
    waits = sorted(board.waits)
    return {
        "readers": count,
        "deliberations": deliberations,
        "kilobytes": kilobytes[0],
        "notified_p50": waits[len(waits) // 2],
        "notified_max": waits[-1],
        **{
            f"{name}_{figure}": statistics.median(run[figure] for run in runs)
            for name, runs in figures.items()
            for figure in runs[0]
        },
    }


async def sign_in(board: Board) -> str:
    """Sign in as a browser and return the cookie."""
    headers = {"Origin": board.url}
    async with board.http.post(
        f"{board.url}/sign-in", data={"token": board.token}, headers=headers, allow_redirects=False
    ) as response:
        [cookie] = response.cookies.values()
    return f"{cookie.key}={cookie.value}"


async def _measure_load(app: Server, board: Board, count: int) -> dict[str, float]:
    """Run deliberations while the board changes. Return CPU milliseconds and the rate."""
    changes = asyncio.create_task(board.change_repeatedly())
    try:
        before, start = app.system.cpu_usage(), time.perf_counter()
        await run_many(text_operation(app), count, _AT_ONCE)
        seconds = time.perf_counter() - start
        cpu_usage = app.system.cpu_usage().since(before)
        if changes.done():
            changes.result()
    finally:
        changes.cancel()
        await asyncio.gather(changes, return_exceptions=True)
    return {
        "cpu": cpu_usage.total * 1000 / count,
        "serve": cpu_usage.cpu["serve"] * 1000 / seconds,
        "rate": count / seconds,
    }
