"""Compare Moothall with the rivals on the same stub, alternating in several rounds (A B C A B C …),
so that the load of the machine is the same for all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environment import (
    MissingRequirement,
    Rival,
    ensure_environment,
    ensure_restate,
    installed_versions,
    start_rival,
)
from benchmarks.load import Run
from benchmarks.machine import CpuUsage, MemoryUsage
from benchmarks.rivals.prompts import RESTATE_SERVER
from benchmarks.server import DEFERRED_GRAPH, Server, run_server
from benchmarks.stub import Stub
from benchmarks.workload import Case, measure

MOOTHALL = "moothall"
SYNCED = "moothall-synced"
"""Moothall with `SYNC_SETTINGS`: each write is synced to the disk before it is acknowledged."""
SYNC_SETTINGS = {"MOOTHALL_BUS__SYNC_INTERVAL": "always"}
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
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of all systems.

    runs: by system and case, one for each round.
    memory: by system, at the end.
    idle_cpu: the share of a core that each part of Moothall used while the rivals ran.
    left_out: the reasons why rivals were left out.
    """

    runs: Mapping[str, Mapping[str, Sequence[Run]]]
    memory: Mapping[str, MemoryUsage]
    idle_cpu: CpuUsage
    versions: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)


def cases(*, quick: bool) -> tuple[Case, ...]:
    """Return the cases, shortest first."""
    if quick:
        return (
            Case(0, 1, 5),
            Case(50, 1, 4),
            Case(500, 1, 1),
            Case(50, 64, seconds=2.0, generations=1),
        )
    return Case(0, 1, 20), Case(50, 1, 10), Case(500, 1, 2), Case(50, 64, seconds=6.0)


async def compare(
    folder: Path, stub: Stub, names: Sequence[str], *, rounds: int, quick: bool, announce: Announce
) -> Comparison:
    """Run every case on every system, round by round. Each system first runs some deliberations
    that are not measured.
    """
    runs: dict[str, dict[str, list[Run]]] = {}
    memory: dict[str, MemoryUsage] = {}
    idle_cpu, rival_seconds = CpuUsage({}), 0.0
    async with AsyncExitStack() as stack:
        announce("starting the systems")
        await stub.set(delay_ms=0, reset=1)
        python = await ensure_environment() if names else Path()
        runnable = await _prepare_rivals(names, announce)
        app = await stack.enter_async_context(
            run_server(folder / "comparison", stub.base_url, DEFERRED_GRAPH)
        )
        contexts = [
            start_rival(python, name, stub.base_url, runnable.settings) for name in runnable.names
        ]
        rivals = [await stack.enter_async_context(context) for context in contexts]
        await measure(app, stub, Case(0, 1, 3))
        for round_ in range(1, rounds + 1):
            for case in cases(quick=quick):
                announce(f"round {round_} of {rounds}: {case.name}")
                runs.setdefault(MOOTHALL, {}).setdefault(case.name, []).append(
                    await measure(app, stub, case)
                )
                before, start = app.system.cpu_usage(), time.perf_counter()
                for rival in rivals:
                    runs.setdefault(rival.name, {}).setdefault(case.name, []).append(
                        await _measure_rival(rival, stub, case)
                    )
                if rivals:
                    idle_cpu = idle_cpu.plus(app.system.cpu_usage().since(before))
                    rival_seconds += time.perf_counter() - start
            announce(f"round {round_} of {rounds}: each write synced")
            synced = await _measure_synced(folder / f"synced-{round_}", stub, cases(quick=quick))
            memory[SYNCED] = synced.memory
            for case_name, run in synced.runs.items():
                runs.setdefault(SYNCED, {}).setdefault(case_name, []).append(run)
        memory |= {MOOTHALL: app.system.memory_usage()}
        memory |= {rival.name: rival.system.memory_usage() for rival in rivals}
        versions = runnable.versions | await installed_versions(python, PACKAGES) if names else {}
    share = idle_cpu.over(rival_seconds) if rivals else CpuUsage({"serve": math.nan})
    return Comparison(runs, memory, share, versions, runnable.left_out)


@dataclass(frozen=True, slots=True)
class _RunnableRivals:
    """Rivals that can run here, their settings and versions, and the reasons why others cannot."""

    names: Sequence[str]
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


async def _prepare_rivals(names: Sequence[str], announce: Announce) -> _RunnableRivals:
    """Install requirements of the rivals that are not in their Python environment."""
    if RESTATE not in names:
        return _RunnableRivals(names)
    try:
        server, version = await ensure_restate()
    except MissingRequirement as error:
        announce(f"Restate is left out: {error}")
        runnable = [name for name in names if name != RESTATE]
        return _RunnableRivals(runnable, left_out={RESTATE: str(error)})
    return _RunnableRivals(names, {RESTATE_SERVER: str(server)}, {"restate-server": version})


@dataclass(frozen=True, slots=True)
class _SyncedRuns:
    """The runs of one round by case, and the memory at the end."""

    runs: Mapping[str, Run]
    memory: MemoryUsage


async def _measure_synced(folder: Path, stub: Stub, each: Sequence[Case]) -> _SyncedRuns:
    """Run the cases on a server with `SYNC_SETTINGS`, and stop it, because an idle one uses CPU."""
    async with run_server(folder, stub.base_url, DEFERRED_GRAPH | SYNC_SETTINGS) as app:
        await measure(app, stub, Case(0, 1, 3))
        runs = {case.name: await measure(app, stub, case) for case in each}
        return _SyncedRuns(runs, app.system.memory_usage())


async def _measure_rival(rival: Rival, stub: Stub, case: Case) -> Run:
    await stub.set(delay_ms=case.delay_ms, reset=1)
    # Connections close and garbage is collected between two systems.
    await asyncio.sleep(0.5)
    if case.at_once == 1:
        return await rival.run(at_once=1, count=case.count)
    return await rival.run(at_once=case.at_once, seconds=case.seconds, generations=case.generations)


async def measure_streamed(app: Server, stub: Stub, case: Case, *, chunks: int) -> Run:
    """Measure Moothall with replies that are streamed in `chunks` chunks instead of one."""
    await stub.set(chunks=chunks)
    try:
        return await measure(app, stub, case)
    finally:
        await stub.set(chunks=1)
