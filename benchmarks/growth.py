"""How it grows: 10, 100, 1,000 deliberations held at once, each seat waiting for its model; and
what one of them costs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Held
from benchmarks.served import SEATS, Served, served
from benchmarks.stub import Stub
from benchmarks.workload import text_act

SETTINGS = {
    # deliberations that a host holds at a time; 64 by default
    "MOOTHALL_RAY__SEATS_PER_HOST": "1000",
    "MOOTHALL_GRPC__CALLS": "2000",
}
_PLACED_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Grown:
    """`count` deliberations held: seconds until every seat was at its model, memory then, seconds
    from release to the last answer.
    """

    count: int
    placed_seconds: float
    held: Held
    finish_seconds: float


async def grow(folder: Path, stub: Stub, counts: tuple[int, ...]) -> tuple[Held, list[Grown]]:
    """Return the memory of the idle server, and what came of each count."""
    await stub.set(delay_ms=0, hold=0, reset=1)
    async with served(folder / "data", stub.base_url, SETTINGS) as app:
        act = text_act(app, seconds=600)
        for _ in range(3):
            await act()
        idle = app.system.held()
        return idle, [await _held(app, stub, count) for count in counts]


async def _held(app: Served, stub: Stub, count: int) -> Grown:
    act = text_act(app, seconds=600)
    await stub.set(hold=1, reset=1)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(act())
        try:
            async with asyncio.timeout(_PLACED_SECONDS):
                while (await stub.stats())["in_flight"] < SEATS * count:  # noqa: ASYNC110 - another process is looked at
                    await asyncio.sleep(0.02)
        finally:
            placed = time.perf_counter() - began
            held = app.system.held()
            released = time.perf_counter()
            await stub.set(hold=0)
    return Grown(count, placed, held, time.perf_counter() - released)
