"""How long one tenant waits while another has a thousand deliberations queued, on one `serve`."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.load import many
from benchmarks.served import TASK, Served, served
from benchmarks.stub import Stub
from moothall.api.accounts import AccessTokens
from moothall.app.bus import open_log
from moothall.domain.event import Channel, EventType
from moothall.events.delivery import MAX_QUEUED
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.settings import load_settings

_DELAY_MS, _AT_ONCE = 500, 2
_FEW = "few"
_SUBMITTING = 64
_SETTINGS = {"MOOTHALL_RAY__SEATS_PER_HOST": str(_AT_ONCE)}


async def tenants(folder: Path, stub: Stub, queued: int, count: int) -> dict[str, Any]:
    """Queue the deliberations of one tenant. Then submit `count` of another, each after the last
    one started.
    """
    await stub.set(delay_ms=_DELAY_MS)
    waits = []
    async with served(folder, stub.base_url, _SETTINGS) as app:
        few = await asyncio.to_thread(_create_token, folder)
        await many(lambda: _submit(app, app.token), queued, _SUBMITTING)
        began, before = time.perf_counter(), (await stub.stats())["calls"]
        for _ in range(count):
            asked = time.perf_counter()
            await _wait_until_started(app, few, await _submit(app, few))
            waits.append(time.perf_counter() - asked)
        rate = ((await stub.stats())["calls"] - before) / (time.perf_counter() - began)
        ahead, left = await _read_order(folder)
    return {
        "queued": queued,
        "count": count,
        "at_once": _AT_ONCE,
        "delay_ms": _DELAY_MS,
        "share": _AT_ONCE + MAX_QUEUED + 1,
        "rate": rate,
        "left": left,
        "wait_p50": statistics.median(waits),
        "wait_max": max(waits),
        "ahead_p50": statistics.median(ahead),
        "ahead_max": max(ahead),
    }


async def _read_order(data_dir: Path) -> tuple[list[int], int]:
    """Return how many deliberations of the other tenant started while each of `few` waited, and how
    many of that tenant still wait, by the log.
    """
    waiting: dict[str, int] = {}
    ahead, started, requested = [], 0, 0
    async with open_log(load_settings(data_dir=data_dir), lambda _: None) as bus:
        async for recorded in bus.replay((Channel.RESULTS.all,)):
            event = recorded.event
            is_few = event.tenant == _FEW
            if event.type is EventType.DELIBERATION_REQUESTED and is_few:
                waiting[event.subject] = started
            elif event.type is EventType.DELIBERATION_REQUESTED:
                requested += 1
            elif event.type is EventType.DELIBERATION_STARTED and is_few:
                ahead.append(started - waiting[event.subject])
            elif event.type is EventType.DELIBERATION_STARTED:
                started += 1
    return ahead, requested - started


def _create_token(data_dir: Path) -> str:
    return AccessTokens(data_dir).create("ann", 3600, tenant=_FEW)[0]


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def _submit(app: Served, token: str) -> str:
    request = pb.DeliberateRequest(
        task_description=TASK, role="dev", num_agents=1, protocol="single"
    )
    answer = await app.stub.SubmitDeliberation(request, metadata=_metadata(token), timeout=60)
    return str(answer.task_id)


async def _wait_until_started(app: Served, token: str, task_id: str) -> None:
    request = pb.WatchDeliberationRequest(task_id=task_id)
    async for update in app.stub.WatchDeliberation(request, metadata=_metadata(token), timeout=600):
        if update.event.type == EventType.DELIBERATION_STARTED:
            return
    raise RuntimeError(f"{task_id} ended before it started")
