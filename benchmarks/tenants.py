"""Measure the waiting time of a tenant while another one has a thousand queued deliberations."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.load import run_many
from benchmarks.server import TASK, Server, run_server
from benchmarks.stub import Stub
from moothall.api.accounts import AccessTokens
from moothall.app.bus import open_log
from moothall.domain.event import Channel, EventType
from moothall.events.delivery import MAX_QUEUED
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.settings import load_settings

_DELAY_MS, _AT_ONCE = 500, 2
_SMALL_TENANT = "few"
_SUBMIT_AT_ONCE = 64
_SETTINGS = {"MOOTHALL_RAY__SEATS_PER_HOST": str(_AT_ONCE)}


async def measure_tenants(folder: Path, stub: Stub, queued: int, count: int) -> dict[str, Any]:
    """Queue the deliberations of one tenant. Then submit `count` of another one, each after the
    previous one has started.
    """
    await stub.set(delay_ms=_DELAY_MS)
    waits = []
    async with run_server(folder, stub.base_url, _SETTINGS) as app:
        token = await asyncio.to_thread(_create_token, folder)
        await run_many(lambda: _submit(app, app.token), queued, _SUBMIT_AT_ONCE)
        start, before = time.perf_counter(), (await stub.stats())["calls"]
        for _ in range(count):
            submit_time = time.perf_counter()
            await _wait_until_started(app, token, await _submit(app, token))
            waits.append(time.perf_counter() - submit_time)
        rate = ((await stub.stats())["calls"] - before) / (time.perf_counter() - start)
        overtaken, waiting = await _read_order(folder)
    return {
        "queued": queued,
        "count": count,
        "at_once": _AT_ONCE,
        "delay_ms": _DELAY_MS,
        "share": _AT_ONCE + MAX_QUEUED + 1,
        "rate": rate,
        "waiting": waiting,
        "wait_p50": statistics.median(waits),
        "wait_max": max(waits),
        "overtaken_p50": statistics.median(overtaken),
        "overtaken_max": max(overtaken),
    }


async def _read_order(data_dir: Path) -> tuple[list[int], int]:
    """Return, from the log, how many deliberations of the large tenant started while each one of
    the small tenant waited, and how many of the large tenant still wait.
    """
    started_at_request: dict[str, int] = {}
    overtaken, started, request_count = [], 0, 0
    async with open_log(load_settings(data_dir=data_dir), lambda _: None) as bus:
        async for recorded in bus.replay((Channel.RESULTS.all,)):
            event = recorded.event
            is_small = event.tenant == _SMALL_TENANT
            if event.type is EventType.DELIBERATION_REQUESTED and is_small:
                started_at_request[event.subject] = started
            elif event.type is EventType.DELIBERATION_REQUESTED:
                request_count += 1
            elif event.type is EventType.DELIBERATION_STARTED and is_small:
                overtaken.append(started - started_at_request[event.subject])
            elif event.type is EventType.DELIBERATION_STARTED:
                started += 1
    return overtaken, request_count - started


def _create_token(data_dir: Path) -> str:
    return AccessTokens(data_dir).create("ann", 3600, tenant=_SMALL_TENANT)[0]


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def _submit(app: Server, token: str) -> str:
    request = pb.DeliberateRequest(
        task_description=TASK, role="dev", num_agents=1, protocol="single"
    )
    response = await app.stub.SubmitDeliberation(request, metadata=_metadata(token), timeout=60)
    return str(response.task_id)


async def _wait_until_started(app: Server, token: str, task_id: str) -> None:
    request = pb.WatchDeliberationRequest(task_id=task_id)
    async for update in app.stub.WatchDeliberation(request, metadata=_metadata(token), timeout=600):
        if update.event.type == EventType.DELIBERATION_STARTED:
            return
    raise RuntimeError(f"{task_id} ended before it started")
