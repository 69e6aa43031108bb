"""What it costs that many have the board open: each browser loads it anew when something happened
on it, as the page's script does.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.micro import Times
from benchmarks.readers import Board, listening, sign_in
from benchmarks.served import served
from benchmarks.stub import Stub

_LOADS, _CHANGES = 50, 5
_AT_ONCE = 16
_SPREAD, _REST = 0.3, 3.0
"""Seconds, as in page.js: within which a page is loaded anew, and that it rests after a refusal, up
to twice as long.
"""
_REFUSED = (429, 503)


async def pages(folder: Path, stub: Stub, stories: int, count: int) -> dict[str, Any]:
    """Milliseconds of one load of a board of `stories`; then, with `count` browsers that have it
    open, from a change to each one's new board, and what that costs `serve`.
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
        loads = Times(tuple([await _load(board) for _ in range(_LOADS + 5)][5:]))
        changed: list[asyncio.Event] = [asyncio.Event() for _ in range(count)]
        waits: list[float] = []
        cpu, refused = [], 0
        async with listening(board, cookie, count, changed):
            for number in range(_CHANGES + 1):
                for event in changed:
                    event.clear()
                before, board.began = app.system.used(), time.perf_counter()
                await board.post(
                    f"/api/v1/stories/{board.story}/comments", {"comment": f"comment {number}"}
                )
                story_id = await asyncio.gather(*(_renew(board, event) for event in changed))
                if number:  # the first opens the connections
                    waits += [seconds for seconds, _ in story_id]
                    refused += sum(times for _, times in story_id)
                    cpu.append(app.system.used().since(before).cpu["serve"] * 1000 / count)
    waits.sort()
    return {
        "stories": stories,
        "pages": count,
        "load_p50": loads.p50,
        "load_p95": loads.p95,
        "renewed_p50": waits[len(waits) // 2],
        "renewed_max": waits[-1],
        "refused": refused / _CHANGES,
        "cpu": sorted(cpu)[len(cpu) // 2],
    }


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


async def _load(board: Board) -> float:
    began = time.perf_counter()
    async with board.http.get(f"{board.url}/") as answer:
        if answer.status != 200 or "data-card" not in await answer.text():  # noqa: PLR2004 - HTTP's OK
            raise AssertionError(f"that is no board: {answer.status}")
    return time.perf_counter() - began


async def _renew(board: Board, changed: asyncio.Event) -> tuple[float, int]:
    """Load the board anew once it is heard that it changed; return the seconds since the change,
    and how often that was refused.
    """
    refused = 0
    await changed.wait()
    await asyncio.sleep(random.random() * _SPREAD)  # noqa: S311 - no secret
    while True:
        async with board.http.get(f"{board.url}/") as answer:
            await answer.read()
            if answer.status not in _REFUSED:
                return time.perf_counter() - board.began, refused
        refused += 1
        await asyncio.sleep(_REST * (1 + random.random()))  # noqa: S311 - no secret
