"""All contenders on the same stub, in turn and in several rounds (A B C A B C …), so that all have the same weather."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment import Rival, ensure, installed, rival
from benchmarks.load import Run
from benchmarks.machine import Held, Used
from benchmarks.served import GRAPH_LATER, Served, served
from benchmarks.stub import Stub
from benchmarks.workload import Case, measure

OURS = "moothall"
RIVALS = ("langgraph-sqlite", "autogen-core", "openai", "aiohttp")
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langchain-openai",
    "autogen-core",
    "autogen-ext",
    "openai",
    "aiohttp",
    "uvloop",
)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contest:
    """Runs by contender and case, one a round; what each held in memory at the end; what share of a core each part of Moothall used while
    the others ran.
    """

    runs: Mapping[str, Mapping[str, Sequence[Run]]]
    memory: Mapping[str, Held]
    idle_cpu: Used
    versions: Mapping[str, str]


def cases(*, quick: bool) -> tuple[Case, ...]:
    """The settings, cheapest first."""
    if quick:
        return Case(0, 1, 5), Case(50, 1, 4), Case(500, 1, 1), Case(50, 64, seconds=2.0, generations=1)
    return Case(0, 1, 20), Case(50, 1, 10), Case(500, 1, 2), Case(50, 64, seconds=6.0)


async def contest(folder: Path, stub: Stub, names: Sequence[str], *, rounds: int, quick: bool, tell: Tell) -> Contest:
    """Run every case of every contender, round by round. Each has its first deliberations before anything is measured."""
    runs: dict[str, dict[str, list[Run]]] = {}
    idle, waited = Used({}), 0.0
    async with AsyncExitStack() as stack:
        tell("starting the contenders")
        await stub.set(delay_ms=0, reset=1)
        python = await ensure() if names else Path()
        house = await stack.enter_async_context(served(folder / "contest", stub.base_url, GRAPH_LATER))
        rivals = [await stack.enter_async_context(rival(python, name, stub.base_url)) for name in names]
        await measure(house, stub, Case(0, 1, 3))
        for round_ in range(1, rounds + 1):
            for case in cases(quick=quick):
                tell(f"round {round_} of {rounds}: {case.name}")
                runs.setdefault(OURS, {}).setdefault(case.name, []).append(await measure(house, stub, case))
                before, began = house.system.used(), time.perf_counter()
                for other in rivals:
                    runs.setdefault(other.name, {}).setdefault(case.name, []).append(await _measure(other, stub, case))
                if rivals:
                    idle, waited = idle.plus(house.system.used().since(before)), waited + time.perf_counter() - began
        memory = {OURS: house.system.held()} | {other.name: other.system.held() for other in rivals}
        versions = await installed(python, PACKAGES) if names else {}
    return Contest(runs, memory, idle.over(waited), versions)


async def _measure(other: Rival, stub: Stub, case: Case) -> Run:
    await stub.set(delay_ms=case.delay_ms, reset=1)
    # At least a second of everybody's time is left between two contenders: connections close, garbage goes.
    await asyncio.sleep(0.5)
    if case.at_once == 1:
        return await other.run(at_once=1, count=case.count)
    return await other.run(at_once=case.at_once, seconds=case.seconds, generations=case.generations)


async def streamed(house: Served, stub: Stub, case: Case, pieces: int) -> Run:
    """Moothall alone, its answers coming in many pieces as a model speaks, not in one."""
    await stub.set(pieces=pieces)
    try:
        return await measure(house, stub, case)
    finally:
        await stub.set(pieces=1)
