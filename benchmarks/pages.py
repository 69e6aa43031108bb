"""Measure many browsers with an open large board. Each fetches the changed cards, as the script of
the page does.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.load import run_many
from benchmarks.microbenchmarks import Times
from benchmarks.readers import Board, connected_readers, sign_in
from benchmarks.server import Server, run_server
from benchmarks.stub import Stub
from benchmarks.workload import text_operation

_COUNCILS, _DELAY_MS = 4, 50
"""Concurrent councils while the boards are open, and the delay of the replies of the model."""
_LOADS, _FRESH_LOADS, _CHANGES = 50, 20, 5
_AT_ONCE = 16
_FETCH_DELAY_SECONDS, _RETRY_SECONDS = 0.3, 3.0
"""Seconds, as in page.js: the maximum delay before a change is fetched, and the minimum delay after
a refused request; the maximum is twice as long.
"""
_REFUSED_STATUSES = (429, 503)


async def measure_pages(folder: Path, stub: Stub, stories: int, count: int) -> dict[str, Any]:
    """Measure the load of a board of `stories`, in milliseconds and compressed bytes, and the first
    load after a change. Then, with `count` open browsers and running councils, measure the time
    from a change to the new card in each browser, its bytes, and the CPU time of `serve`.
    """
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            run_server(
                folder / "data",
                stub.base_url,
                {"MOOTHALL_WEB__PORT": str(port), "MOOTHALL_RAY__MODE": "process"},
            )
        )
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        jar = aiohttp.CookieJar(unsafe=True)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=jar, connector=connector)
        )
        board = Board(http, f"http://127.0.0.1:{port}", app.token)
        await _fill_board(board, stories)
        cookie = await sign_in(board)
        loads = Times(tuple([(await _load_board(board))[0] for _ in range(_LOADS + 5)][5:]))
        fresh_loads = []
        for number in range(_FRESH_LOADS):
            await _change(board, f"Seen {number} times.")
            fresh_loads.append((await _load_board(board))[0])
        _, load_bytes, _ = await _load_board(board)
        changed: list[asyncio.Event] = [asyncio.Event() for _ in range(count)]
        seconds: list[float] = []
        cpu, refused, sizes = [], 0, []
        await stub.set(delay_ms=_DELAY_MS)
        async with (
            connected_readers(board, cookie, count, changed),
            _running_councils(app) as ended,
        ):
            for number in range(_CHANGES + 1):
                for event in changed:
                    event.clear()
                _, _, seq = await _load_board(board)
                before, board.change_time = app.system.cpu_usage(), time.perf_counter()
                await _change(board, f"comment {number}")
                fetches = await asyncio.gather(
                    *(_fetch_change(board, seq, event) for event in changed)
                )
                if number:  # the first change opens the connections
                    seconds += [fetch.seconds for fetch in fetches]
                    refused += sum(fetch.refused for fetch in fetches)
                    sizes += [fetch.size for fetch in fetches]
                    cpu.append(app.system.cpu_usage().since(before).cpu["serve"] * 1000 / count)
            councils = len(ended)
    seconds.sort()
    return {
        "stories": stories,
        "pages": count,
        "load_p50": loads.p50,
        "load_p95": loads.p95,
        "fresh_p50": Times(tuple(fresh_loads)).p50,
        "load_bytes": load_bytes,
        "change_bytes": max(sizes),
        "change_p50": seconds[len(seconds) // 2],
        "change_max": seconds[-1],
        "refused": refused / _CHANGES,
        "councils": councils,
        "cpu": sorted(cpu)[len(cpu) // 2],
        "load": os.getloadavg()[0],
    }


@asynccontextmanager
async def _running_councils(app: Server) -> AsyncIterator[list[object]]:
    """Run councils during the context; yield a list with an item for each ended one."""
    ended: list[object] = []
    deliberate = text_operation(app)

    async def run_council() -> None:
        await deliberate()
        ended.append(None)

    running = asyncio.create_task(run_many(run_council, 1_000_000, _COUNCILS))
    try:
        yield ended
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _fill_board(board: Board, stories: int) -> None:
    """Write stories, each refined and commented on."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(number: int) -> None:
        async with slots:
            story_id = await board.create_story(
                {"title": f"Export the invoices of month {number} as CSV"}
            )
            await board.post(f"/api/v1/stories/{story_id}/transitions", {"event": "refine"})
            for comment in ("Mind the old files.", "And the umlauts.", "Ask the accountants."):
                await board.post(f"/api/v1/stories/{story_id}/comments", {"comment": comment})
            board.story = story_id

    await asyncio.gather(*(create(number) for number in range(stories)))


async def _change(board: Board, comment: str) -> None:
    await board.post(f"/api/v1/stories/{board.story}/comments", {"comment": comment})


async def _load_board(board: Board) -> tuple[float, int, str]:
    """Load the board. Return the seconds, the bytes of the body as sent, and the sequence number of
    the last event in the board.
    """
    start = time.perf_counter()
    async with board.http.get(f"{board.url}/") as response:
        text = await response.text()
    seconds = time.perf_counter() - start
    head = re.search(r'id="board-head" data-seq="(\d+)"', text)
    if head is None:
        raise AssertionError(f"the response is not a board: {response.status}")
    return seconds, int(response.headers["Content-Length"]), head[1]


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The seconds from a change to the new card in a browser, the number of refused requests, and
    the bytes of the response body as sent.
    """

    seconds: float
    refused: int
    size: int


async def _fetch_change(board: Board, seq: str, changed: asyncio.Event) -> _Fetch:
    """Wait for a notification, and then fetch the cards that changed after the event `seq`."""
    refused = 0
    await changed.wait()
    await asyncio.sleep(random.random() * _FETCH_DELAY_SECONDS)  # noqa: S311 - no secret
    while True:
        async with board.http.get(f"{board.url}/cards?after={seq}") as response:
            text = await response.text()
            if response.status not in _REFUSED_STATUSES:
                if f"card-{board.story}" not in text:
                    raise AssertionError("the changed card is missing")
                seconds = time.perf_counter() - board.change_time
                return _Fetch(seconds, refused, int(response.headers["Content-Length"]))
        refused += 1
        await asyncio.sleep(_RETRY_SECONDS * (1 + random.random()))  # noqa: S311 - no secret
