"""The cost of many browsers with a large board open: each fetches the cards that changed, as the
page's script does.
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

from benchmarks.load import many
from benchmarks.micro import Times
from benchmarks.readers import Board, listening, sign_in
from benchmarks.served import Served, served
from benchmarks.stub import Stub
from benchmarks.workload import text_act

_COUNCILS, _DELAY_MS = 4, 50
"""Councils that run at once while the boards are open, and the delay of the model's replies."""
_LOADS, _FRESH_LOADS, _CHANGES = 50, 20, 5
_AT_ONCE = 16
_SPREAD, _REST = 0.3, 3.0
"""Seconds, as in page.js: the longest delay before a change is fetched, and the shortest delay
after a refusal, which is up to twice as long.
"""
_REFUSED = (429, 503)


async def pages(folder: Path, stub: Stub, stories: int, count: int) -> dict[str, Any]:
    """Measure one load of a board of `stories`, in milliseconds and compressed bytes, and the first
    load after a change. Then measure, with `count` open browsers, the time from a change to the new
    card in each of them, its bytes, and the CPU time of `serve`. Councils run meanwhile.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            served(
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
        await _fill(board, stories)
        cookie = await sign_in(board)
        loads = Times(tuple([(await _load(board))[0] for _ in range(_LOADS + 5)][5:]))
        fresh_loads = []
        for number in range(_FRESH_LOADS):
            await _change(board, f"Seen {number} times.")
            fresh_loads.append((await _load(board))[0])
        _, load_bytes, _ = await _load(board)
        changed: list[asyncio.Event] = [asyncio.Event() for _ in range(count)]
        waits: list[float] = []
        cpu, refused, sizes = [], 0, []
        await stub.set(delay_ms=_DELAY_MS)
        async with listening(board, cookie, count, changed), _councils(app) as ended:
            for number in range(_CHANGES + 1):
                for event in changed:
                    event.clear()
                _, _, seq = await _load(board)
                before, board.began = app.system.used(), time.perf_counter()
                await _change(board, f"comment {number}")
                renewed = await asyncio.gather(*(_renew(board, seq, event) for event in changed))
                if number:  # the first opens the connections
                    waits += [one.seconds for one in renewed]
                    refused += sum(one.refused for one in renewed)
                    sizes += [one.size for one in renewed]
                    cpu.append(app.system.used().since(before).cpu["serve"] * 1000 / count)
            councils = len(ended)
    waits.sort()
    return {
        "stories": stories,
        "pages": count,
        "load_p50": loads.p50,
        "load_p95": loads.p95,
        "fresh_p50": Times(tuple(fresh_loads)).p50,
        "load_bytes": load_bytes,
        "change_bytes": max(sizes),
        "renewed_p50": waits[len(waits) // 2],
        "renewed_max": waits[-1],
        "refused": refused / _CHANGES,
        "councils": councils,
        "cpu": sorted(cpu)[len(cpu) // 2],
        "load": os.getloadavg()[0],
    }


@asynccontextmanager
async def _councils(app: Served) -> AsyncIterator[list[object]]:
    """Run councils one after the other. Yield the list of those that ended."""
    ended: list[object] = []
    act = text_act(app)

    async def one() -> None:
        await act()
        ended.append(None)

    running = asyncio.create_task(many(one, 1_000_000, _COUNCILS))
    try:
        yield ended
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _fill(board: Board, stories: int) -> None:
    """Write stories, each refined and commented on."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            story_id = await board.create_story(
                {"title": f"Export the invoices of month {number} as CSV"}
            )
            await board.post(f"/api/v1/stories/{story_id}/transitions", {"event": "refine"})
            for word in ("Mind the old files.", "And the umlauts.", "Ask the accountants."):
                await board.post(f"/api/v1/stories/{story_id}/comments", {"comment": word})
            board.story = story_id

    await asyncio.gather(*(one(number) for number in range(stories)))


async def _change(board: Board, comment: str) -> None:
    await board.post(f"/api/v1/stories/{board.story}/comments", {"comment": comment})


async def _load(board: Board) -> tuple[float, int, str]:
    """Load the board. Return the seconds, the bytes of the body as sent, and the number of the last
    event that the board shows.
    """
    began = time.perf_counter()
    async with board.http.get(f"{board.url}/") as answer:
        text = await answer.text()
    seconds = time.perf_counter() - began
    shown = re.search(r'id="board-head" data-seq="(\d+)"', text)
    if shown is None:
        raise AssertionError(f"the response is not a board: {answer.status}")
    return seconds, int(answer.headers["Content-Length"]), shown[1]


@dataclass(frozen=True, slots=True)
class _Renewed:
    """The seconds from a change to the new card in a browser, the number of refused requests, and
    the bytes of the response body as sent.
    """

    seconds: float
    refused: int
    size: int


async def _renew(board: Board, seq: str, changed: asyncio.Event) -> _Renewed:
    """Wait for a notification, then fetch the cards that changed after the event `seq`."""
    refused = 0
    await changed.wait()
    await asyncio.sleep(random.random() * _SPREAD)  # noqa: S311 - no secret
    while True:
        async with board.http.get(f"{board.url}/cards?after={seq}") as answer:
            text = await answer.text()
            if answer.status not in _REFUSED:
                if f"card-{board.story}" not in text:
                    raise AssertionError("the changed card is missing")
                seconds = time.perf_counter() - board.began
                return _Renewed(seconds, refused, int(answer.headers["Content-Length"]))
        refused += 1
        await asyncio.sleep(_REST * (1 + random.random()))  # noqa: S311 - no secret
