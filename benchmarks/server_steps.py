"""Measure steps of the server as a client: the start of a council, the projection into the graph,
and the recovery after kill -9 of all processes.
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

from benchmarks.load import run_many
from benchmarks.microbenchmarks import Times
from benchmarks.server import DEFERRED_GRAPH, SEATS, Server, run_server, text_request
from benchmarks.stub import Stub
from benchmarks.workload import text_operation
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

_POLL_SECONDS = 0.005
_RECOVERY_SECONDS = 120
_DELAY_MS = 1000
_RECORDED_SECONDS = 0.1  # until the proposals are in the log
_IDLE_SECONDS, _IDLE_SHARE = 2.0, 0.08
_ROUNDS = 3


async def measure_start(app: Server, stub: Stub, count: int) -> Times:
    """Measure from the request until the last of three seats starts, by the times in the log."""
    await stub.set(delay_ms=0)
    seconds = []
    for _ in range(count):
        times = await _event_times(app)
        starts = [at for kind, at in times if kind == "moothall.seat.started"]
        request_time = next(at for kind, at in times if kind == "moothall.deliberation.requested")
        seconds.append((max(starts) - request_time).total_seconds())
    return Times(tuple(seconds))


async def _event_times(app: Server) -> list[tuple[str, datetime]]:
    updates = app.stub.StreamDeliberation(text_request(), metadata=app.metadata, timeout=120)
    return [
        (update.event.type, datetime.fromisoformat(update.event.time)) async for update in updates
    ]


async def measure_projection(folder: Path, stub: Stub, count: int) -> dict[str, float]:
    """Measure a deliberation with and without the graph: CPU milliseconds, kilobytes of memory, and
    the seconds that the projection takes after the last response.

    Return medians of three rounds. In each, two servers run `count` deliberations in turn, because
    the speed of the machine varies. The CPU usage of an idle server is subtracted, because the
    measurement with the graph takes longer.
    """
    await stub.set(delay_ms=0)
    figures: dict[str, list[float]] = defaultdict(list)
    async with (
        run_server(folder / "without", stub.base_url, DEFERRED_GRAPH) as without_graph,
        run_server(folder / "with", stub.base_url, {}) as with_graph,
    ):
        apps = {"without": without_graph, "with": with_graph}
        idle, memory = {}, {}
        for name, app in apps.items():
            for _ in range(3):
                await text_operation(app)()
            await _wait_until_idle(app)
            cpu_seconds = app.system.cpu_usage().total
            await asyncio.sleep(_IDLE_SECONDS)
            idle[name] = (app.system.cpu_usage().total - cpu_seconds) / _IDLE_SECONDS
            memory[name] = app.system.memory_usage().pss["serve"]
        for name, app in [*apps.items()] * _ROUNDS:
            before, start = app.system.cpu_usage().total, time.perf_counter()
            await run_many(text_operation(app), count, 64)
            end_time = time.perf_counter()
            await _wait_until_idle(app)
            cpu_seconds = (
                app.system.cpu_usage().total - before - idle[name] * (time.perf_counter() - start)
            )
            figures[f"{name}_ms"].append(cpu_seconds * 1000 / count)
            figures[f"{name}_seconds"].append(end_time - start)
            figures[f"{name}_lag"].append(time.perf_counter() - end_time - _IDLE_SECONDS)
        for name, app in apps.items():
            figures[f"{name}_kb"].append(
                (app.system.memory_usage().pss["serve"] - memory[name]) / 1024 / count / _ROUNDS
            )
    return {name: median(values) for name, values in figures.items()}


async def _wait_until_idle(app: Server) -> None:
    """Wait until the serving process is idle: then all events are projected into the graph."""
    while True:
        before = app.system.cpu_usage().cpu["serve"]
        await asyncio.sleep(_IDLE_SECONDS)
        if app.system.cpu_usage().cpu["serve"] - before < _IDLE_SECONDS * _IDLE_SHARE:
            return


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of a deliberation after kill -9.

    resume_seconds: from the readiness of the server to the first new model call.
    down_seconds: from the kill to the readiness.
    calls: model calls after the kill. Three proposals were recorded, so three reviews and three
    revisions remain, and more than six calls are too many.
    """

    resume_seconds: float
    down_seconds: float
    calls: int


async def measure_recovery(folder: Path, stub: Stub) -> Recovery:
    """Kill all processes of the server with SIGKILL during the reviews of a deliberation, and start
    it again.
    """
    await stub.set(delay_ms=_DELAY_MS, reset=1)
    data, scratch = folder / "data", folder / "t"
    scratch.mkdir()
    settings = {"TMPDIR": str(scratch)}  # files of a killed Ray are removed with the folder
    async with run_server(data, stub.base_url, settings) as app:
        submitted = await app.stub.SubmitDeliberation(text_request(), metadata=app.metadata)
        while (await stub.stats())["by_schema"].get("review", 0) < SEATS:  # noqa: ASYNC110 - polls another process
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(_RECORDED_SECONDS)
        killed = time.perf_counter()
        app.system.kill()
    await stub.set(delay_ms=0, reset=1)
    async with run_server(data, stub.base_url, settings) as app:
        ready_time = time.perf_counter()
        async with asyncio.timeout(_RECOVERY_SECONDS):
            while _count_seat_calls(await stub.stats()) == 0:  # noqa: ASYNC110 - polls another process
                await asyncio.sleep(_POLL_SECONDS)
        first = time.perf_counter()
        await _wait_until_completed(app, submitted.task_id)
        return Recovery(
            first - ready_time, ready_time - killed, _count_seat_calls(await stub.stats())
        )


def _count_seat_calls(stats: Mapping[str, Any]) -> int:
    """Return the number of model calls, without the probe for schemas."""
    return sum(count for schema, count in stats["by_schema"].items() if schema != "probe")


async def _wait_until_completed(app: Server, task_id: str) -> None:
    request = pb.GetDeliberationResultRequest(task_id=task_id)
    async with asyncio.timeout(_RECOVERY_SECONDS):
        while True:
            result = await app.stub.GetDeliberationResult(request, metadata=app.metadata)
            if result.status == pb.DELIBERATION_STATUS_COMPLETED:
                return
            await asyncio.sleep(0.05)
