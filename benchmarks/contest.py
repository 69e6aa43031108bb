"""All contenders on the same stub, in turn and in several rounds (A B C A B C …), so that all have
the same weather.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environment import Missing, Rival, ensure, ensure_restate, installed, rival
from benchmarks.load import Run
from benchmarks.machine import Held, Used
from benchmarks.rivals.words import RESTATE_SERVER
from benchmarks.served import GRAPH_LATER, Served, served
from benchmarks.stub import Stub
from benchmarks.workload import Case, measure

OURS = "moothall"
SYNCED = "moothall-synced"
"""Moothall with `SYNCING`: each write is on the disk before it is acked."""
SYNCING = {"MOOTHALL_BUS__SYNC_INTERVAL": "always"}
RESTATE = "restate"
RIVALS = (RESTATE, "langgraph-sqlite", "autogen-core", "openai", "aiohttp")
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langchain-openai",
    "autogen-core",
    "autogen-ext",
    "openai",
    "aiohttp",
    "uvloop",
    "restate-sdk",
    "hypercorn",
)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contest:
    """Runs by contender and case, one a round; what each held in memory at the end; what share of a
    core each part of Moothall used while the others ran; rivals that were left out, and why.
    """

    runs: Mapping[str, Mapping[str, Sequence[Run]]]
    memory: Mapping[str, Held]
    idle_cpu: Used
    versions: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)


def cases(*, quick: bool) -> tuple[Case, ...]:
    """The settings, cheapest first."""
    if quick:
        return (
            Case(0, 1, 5),
            Case(50, 1, 4),
            Case(500, 1, 1),
            Case(50, 64, seconds=2.0, generations=1),
        )
    return Case(0, 1, 20), Case(50, 1, 10), Case(500, 1, 2), Case(50, 64, seconds=6.0)


async def contest(
    folder: Path, stub: Stub, names: Sequence[str], *, rounds: int, quick: bool, announce: Tell
) -> Contest:
    """Run every case of every contender, round by round. Each has its first deliberations before
    anything is measured.
    """
    runs: dict[str, dict[str, list[Run]]] = {}
    memory: dict[str, Held] = {}
    idle, waited = Used({}), 0.0
    async with AsyncExitStack() as stack:
        announce("starting the contenders")
        await stub.set(delay_ms=0, reset=1)
        python = await ensure() if names else Path()
        ready = await _prepare(names, announce)
        app = await stack.enter_async_context(
            served(folder / "contest", stub.base_url, GRAPH_LATER)
        )
        contexts = [rival(python, name, stub.base_url, ready.settings) for name in ready.names]
        rivals = [await stack.enter_async_context(context) for context in contexts]
        await measure(app, stub, Case(0, 1, 3))
        for round_ in range(1, rounds + 1):
            for case in cases(quick=quick):
                announce(f"round {round_} of {rounds}: {case.name}")
                runs.setdefault(OURS, {}).setdefault(case.name, []).append(
                    await measure(app, stub, case)
                )
                before, began = app.system.used(), time.perf_counter()
                for other in rivals:
                    runs.setdefault(other.name, {}).setdefault(case.name, []).append(
                        await _measure(other, stub, case)
                    )
                if rivals:
                    idle, waited = (
                        idle.plus(app.system.used().since(before)),
                        waited + time.perf_counter() - began,
                    )
            announce(f"round {round_} of {rounds}: each write synced")
            synced = await _measure_synced(folder / f"synced-{round_}", stub, cases(quick=quick))
            memory[SYNCED] = synced.memory
            for case_name, run in synced.runs.items():
                runs.setdefault(SYNCED, {}).setdefault(case_name, []).append(run)
        memory |= {OURS: app.system.held()}
        memory |= {other.name: other.system.held() for other in rivals}
        versions = ready.versions | await installed(python, PACKAGES) if names else {}
    share = idle.over(waited) if rivals else Used({"serve": math.nan})
    return Contest(runs, memory, share, versions, ready.left_out)


@dataclass(frozen=True, slots=True)
class _Ready:
    """Rivals that can run here, with what they need, and those that cannot, with the reason."""

    names: Sequence[str]
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


async def _prepare(names: Sequence[str], announce: Tell) -> _Ready:
    """Install what the rivals need beside their Python environment."""
    if RESTATE not in names:
        return _Ready(names)
    try:
        server, version = await ensure_restate()
    except Missing as error:
        announce(f"Restate is left out: {error}")
        others = [name for name in names if name != RESTATE]
        return _Ready(others, left_out={RESTATE: str(error)})
    return _Ready(names, {RESTATE_SERVER: str(server)}, {"restate-server": version})


@dataclass(frozen=True, slots=True)
class _Synced:
    """Runs of one round by case, and the memory at their end."""

    runs: Mapping[str, Run]
    memory: Held


async def _measure_synced(folder: Path, stub: Stub, each: Sequence[Case]) -> _Synced:
    """Run the cases on a server with `SYNCING`, and stop it: idle, it would cost the others CPU."""
    async with served(folder, stub.base_url, GRAPH_LATER | SYNCING) as app:
        await measure(app, stub, Case(0, 1, 3))
        runs = {case.name: await measure(app, stub, case) for case in each}
        return _Synced(runs, app.system.held())


async def _measure(other: Rival, stub: Stub, case: Case) -> Run:
    await stub.set(delay_ms=case.delay_ms, reset=1)
    # At least a second of everybody's time is left between two contenders: connections close,
    # garbage goes.
    await asyncio.sleep(0.5)
    if case.at_once == 1:
        return await other.run(at_once=1, count=case.count)
    return await other.run(at_once=case.at_once, seconds=case.seconds, generations=case.generations)


async def streamed(app: Served, stub: Stub, case: Case, pieces: int) -> Run:
    """Moothall alone, its answers coming in many pieces as a model speaks, not in one."""
    await stub.set(pieces=pieces)
    try:
        return await measure(app, stub, case)
    finally:
        await stub.set(pieces=1)
