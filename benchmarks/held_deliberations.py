"""Measure the memory and time of 10, 100 and 1,000 concurrent deliberations whose seats all wait
for the model.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import MemoryUsage
from benchmarks.server import SEATS, Server, run_server
from benchmarks.stub import Stub
from benchmarks.workload import text_operation

SETTINGS = {
    # concurrent deliberations of a host; 64 by default
    "MOOTHALL_RAY__SEATS_PER_HOST": "1000",
    "MOOTHALL_GRPC__CALLS": "2000",
}
_START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class HeldResult:
    """The result for `count` deliberations.

    start_seconds: until every seat waits for the model. `memory` is measured then.
    finish_seconds: from the first model reply to the last response.
    """

    count: int
    start_seconds: float
    memory: MemoryUsage
    finish_seconds: float


async def measure(
    folder: Path, stub: Stub, counts: tuple[int, ...]
) -> tuple[MemoryUsage, list[HeldResult]]:
    """Return the memory of the idle server, and the result for each count."""
    await stub.set(delay_ms=0, hold=0, reset=1)
    async with run_server(folder / "data", stub.base_url, SETTINGS) as app:
        deliberate = text_operation(app, seconds=600)
        for _ in range(3):
            await deliberate()
        idle = app.system.memory_usage()
        return idle, [await _measure_count(app, stub, count) for count in counts]


async def _measure_count(app: Server, stub: Stub, count: int) -> HeldResult:
    deliberate = text_operation(app, seconds=600)
    await stub.set(hold=1, reset=1)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(deliberate())
        try:
            async with asyncio.timeout(_START_SECONDS):
                while (await stub.stats())["in_flight"] < SEATS * count:  # noqa: ASYNC110 - polls another process
                    await asyncio.sleep(0.02)
        finally:
            start_seconds = time.perf_counter() - start
            memory = app.system.memory_usage()
            released = time.perf_counter()
            await stub.set(hold=0)
    return HeldResult(count, start_seconds, memory, time.perf_counter() - released)
