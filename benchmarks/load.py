"""Callers: some at once, each of whom begins again when it has its answer. Needs nothing but the
standard library.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Act = Callable[[], Coroutine[Any, Any, object]]
Probe = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """`count` deliberations ended in `seconds`, with `at_once` of them under way; `waits` are their
    own wall seconds.

    `cpu` is seconds by part of the system; `caller` and `stub` are no parts of it and told apart.
    """

    at_once: int
    count: int
    seconds: float
    waits: tuple[float, ...]
    cpu: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Deliberations a second."""
        return self.count / self.seconds

    @property
    def wait(self) -> float:
        """The median wall seconds of one."""
        return statistics.median(self.waits)

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of one over all processes of the system."""
        return sum(self.parts_ms().values())

    def parts_ms(self) -> dict[str, float]:
        """The same by part."""
        return {
            part: value * 1000 / self.count
            for part, value in self.cpu.items()
            if part not in {"caller", "stub"}
        }

    def document(self) -> dict[str, Any]:
        """As JSON takes it; `read` reads it again."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Run:
        """Read a document."""
        return cls(**{**document, "waits": tuple(document["waits"])})


def _since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


async def in_turn(act: Act, count: int, probe: Probe) -> Run:
    """One after the other."""
    waits: list[float] = []
    before, began = probe(), time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        await act()
        waits.append(time.perf_counter() - start)
    return Run(1, count, time.perf_counter() - began, tuple(waits), _since(probe(), before))


async def taking_turns(ways: Sequence[tuple[Act, Probe]], count: int) -> tuple[Run, ...]:
    """One after the other, each way in its turn, `count` times: what the machine does meanwhile is
    the same for all.
    """
    found = [[await in_turn(act, 1, probe) for act, probe in ways] for _ in range(count)]
    return tuple(_added(runs) for runs in zip(*found, strict=True))


def _added(runs: Sequence[Run]) -> Run:
    parts = {part for run in runs for part in run.cpu}
    cpu = {part: sum(run.cpu.get(part, 0.0) for run in runs) for part in sorted(parts)}
    waits = tuple(wait for run in runs for wait in run.waits)
    return Run(1, len(waits), sum(run.seconds for run in runs), waits, cpu)


async def side_by_side(
    act: Act, at_once: int, seconds: float, probe: Probe, *, generations: int = 2
) -> Run:
    """`at_once` of them under way, measured in the middle: neither the start nor the end is in the
    figures.

    Callers that began together tend to end together: the measuring begins when as many have ended
    as there are callers,
    and lasts `seconds` and at least `generations` times as many.
    """
    ended: list[tuple[float, float]] = []
    marks: list[tuple[int, float, Mapping[str, float]]] = []
    enough = asyncio.Event()

    def mark() -> None:
        marks.append((len(ended), time.perf_counter(), probe()))

    async def caller() -> None:
        while not enough.is_set():
            start = time.perf_counter()
            await act()
            now = time.perf_counter()
            ended.append((now, now - start))
            if not marks and len(ended) >= at_once:
                mark()
            elif (
                marks
                and len(ended) >= marks[0][0] + generations * at_once
                and now >= marks[0][1] + seconds
            ):
                enough.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(caller())
        await enough.wait()
        mark()
    (skipped, began, before), (last, stopped, after) = marks[0], marks[-1]
    waits = tuple(wait for _, wait in ended[skipped:last])
    return Run(at_once, len(waits), stopped - began, waits, _since(after, before))


async def many(act: Act, count: int, at_once: int) -> None:
    """Run that many, `at_once` of them at a time; nothing is measured."""
    left = count

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await act()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, count)):
            group.create_task(caller())
