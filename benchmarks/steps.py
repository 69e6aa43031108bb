"""Steps of the server that are seen from outside: a council placed, and work taken up after a
kill -9 of everything.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import many
from benchmarks.micro import Times
from benchmarks.served import GRAPH_LATER, SEATS, Served, served, text_request
from benchmarks.stub import Stub
from benchmarks.workload import text_act
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

_LOOK = 0.005
_TAKE_UP_SECONDS = 120
_DELAY_MS = 1000
_RECORDED_SECONDS = 0.1  # by then what came before the reviews is on the log
_QUIET_SECONDS, _QUIET_SHARE = 2.0, 0.08
_TURNS = 3


async def placed(app: Served, stub: Stub, count: int) -> Times:
    """From the request on the log until the last of three seats has started, by the log's own
    times.
    """
    await stub.set(delay_ms=0)
    seconds = []
    for _ in range(count):
        times = await _event_times(app)
        started = [when for kind, when in times if kind == "moothall.seat.started"]
        requested = next(when for kind, when in times if kind == "moothall.deliberation.requested")
        seconds.append((max(started) - requested).total_seconds())
    return Times(tuple(seconds))


async def _event_times(app: Served) -> list[tuple[str, datetime]]:
    updates = app.stub.StreamDeliberation(text_request(), metadata=app.metadata, timeout=120)
    return [
        (update.event.type, datetime.fromisoformat(update.event.time)) async for update in updates
    ]


async def projected(folder: Path, stub: Stub, count: int) -> dict[str, float]:
    """With and without the graph: CPU milliseconds and kilobytes of a deliberation, seconds that
    the graph took after the answers. Medians of three turns, in which two servers take `count`
    each,
    one after the other: a machine is not as fast in one minute as in the next.

    What a server uses while nothing happens is taken off: with the graph the measurement lasts
    longer.
    """
    await stub.set(delay_ms=0)
    turns: dict[str, list[float]] = defaultdict(list)
    async with (
        served(folder / "without", stub.base_url, GRAPH_LATER) as without,
        served(folder / "with", stub.base_url, {}) as graphed,
    ):
        apps = {"without": without, "with": graphed}
        idle, memory = {}, {}
        for name, app in apps.items():
            for _ in range(3):
                await text_act(app)()
            await _quiet(app)
            used = app.system.used().total
            await asyncio.sleep(_QUIET_SECONDS)
            idle[name] = (app.system.used().total - used) / _QUIET_SECONDS
            memory[name] = app.system.held().pss["serve"]
        for name, app in [*apps.items()] * _TURNS:
            before, began = app.system.used().total, time.perf_counter()
            await many(text_act(app), count, 64)
            answered = time.perf_counter()
            await _quiet(app)
            used = app.system.used().total - before - idle[name] * (time.perf_counter() - began)
            turns[f"{name}_ms"].append(used * 1000 / count)
            turns[f"{name}_seconds"].append(answered - began)
            turns[f"{name}_behind"].append(time.perf_counter() - answered - _QUIET_SECONDS)
        for name, app in apps.items():
            turns[f"{name}_kb"].append(
                (app.system.held().pss["serve"] - memory[name]) / 1024 / count / _TURNS
            )
    return {name: median(values) for name, values in turns.items()}


async def _quiet(app: Served) -> None:
    """Wait until the serving process rests: then the graph has what the log has."""
    while True:
        before = app.system.used().cpu["serve"]
        await asyncio.sleep(_QUIET_SECONDS)
        if app.system.used().cpu["serve"] - before < _QUIET_SECONDS * _QUIET_SHARE:
            return


@dataclass(frozen=True, slots=True)
class Resumed:
    """Seconds from ready to the first new model call, how long the server was away, and how many
    calls came after.

    Three proposals were recorded: three reviews and three revisions are left, so that more than six
    calls are too many.
    """

    seconds: float
    away: float
    calls: int


async def resumed(folder: Path, stub: Stub) -> Resumed:
    """Kill every process of the server with -9 while a deliberation's reviews are under way; start
    it again; watch it go on.
    """
    await stub.set(delay_ms=_DELAY_MS, reset=1)
    data, scratch = folder / "data", folder / "t"
    scratch.mkdir()
    settings = {
        "TMPDIR": str(scratch)
    }  # what Ray leaves there when it is killed goes with the folder
    async with served(data, stub.base_url, settings) as app:
        submitted = await app.stub.SubmitDeliberation(text_request(), metadata=app.metadata)
        while (await stub.stats())["by_schema"].get("review", 0) < SEATS:  # noqa: ASYNC110 - another process is looked at
            await asyncio.sleep(_LOOK)
        await asyncio.sleep(_RECORDED_SECONDS)
        killed = time.perf_counter()
        app.system.kill()
    await stub.set(delay_ms=0, reset=1)
    async with served(data, stub.base_url, settings) as app:
        ready = time.perf_counter()
        async with asyncio.timeout(_TAKE_UP_SECONDS):
            while _of_seats(await stub.stats()) == 0:  # noqa: ASYNC110 - another process is looked at
                await asyncio.sleep(_LOOK)
        first = time.perf_counter()
        await _decided(app, submitted.task_id)
        return Resumed(first - ready, ready - killed, _of_seats(await stub.stats()))


def _of_seats(received: Mapping[str, Any]) -> int:
    """Calls, but for the one that finds out whether the server takes schemas."""
    return sum(count for schema, count in received["by_schema"].items() if schema != "probe")


async def _decided(app: Served, task_id: str) -> None:
    asked = pb.GetDeliberationResultRequest(task_id=task_id)
    async with asyncio.timeout(_TAKE_UP_SECONDS):
        while True:
            result = await app.stub.GetDeliberationResult(asked, metadata=app.metadata)
            if result.status == pb.DELIBERATION_STATUS_COMPLETED:
                return
            await asyncio.sleep(0.05)
