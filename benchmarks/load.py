"""Run and measure operations, one after the other or concurrently. Standard library only."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Operation = Callable[[], Coroutine[Any, Any, object]]
Probe = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """The measurement of `count` deliberations that ended in `seconds`, with `at_once` concurrent.

    waits: the wall seconds of each.
    cpu: CPU seconds by part of the system, and of `caller` and `stub`, which do not belong to it.
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
        """The median wall seconds of a deliberation."""
        return statistics.median(self.waits)

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of a deliberation over all processes of the system."""
        return sum(self.parts_ms().values())

    def parts_ms(self) -> dict[str, float]:
        """Return the CPU milliseconds of a deliberation by part of the system."""
        return {
            part: value * 1000 / self.count
            for part, value in self.cpu.items()
            if part not in {"caller", "stub"}
        }

    def document(self) -> dict[str, Any]:
        """Return the run as a JSON object, which `read` parses."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Run:
        """Return the run of a document."""
        return cls(**{**document, "waits": tuple(document["waits"])})


def _difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


async def run_sequential(operation: Operation, count: int, probe: Probe) -> Run:
    """Run an operation `count` times, one after the other, and measure it."""
    waits: list[float] = []
    before, start = probe(), time.perf_counter()
    for _ in range(count):
        operation_start = time.perf_counter()
        await operation()
        waits.append(time.perf_counter() - operation_start)
    return Run(1, count, time.perf_counter() - start, tuple(waits), _difference(probe(), before))


async def run_alternating(
    operations: Sequence[tuple[Operation, Probe]], count: int
) -> tuple[Run, ...]:
    """Run several operations in turn, `count` times each, so that the load of the machine is the
    same for all. Return a run for each operation.
    """
    rounds = [
        [await run_sequential(operation, 1, probe) for operation, probe in operations]
        for _ in range(count)
    ]
    return tuple(_merge_runs(runs) for runs in zip(*rounds, strict=True))


def _merge_runs(runs: Sequence[Run]) -> Run:
    parts = {part for run in runs for part in run.cpu}
    cpu = {part: sum(run.cpu.get(part, 0.0) for run in runs) for part in sorted(parts)}
    waits = tuple(wait for run in runs for wait in run.waits)
    return Run(1, len(waits), sum(run.seconds for run in runs), waits, cpu)


async def run_concurrent(
    operation: Operation, at_once: int, seconds: float, probe: Probe, *, generations: int = 2
) -> Run:
    """Run an operation with `at_once` callers, and measure neither the start nor the end.

    Callers that start together tend to end together. So the measurement begins once `at_once`
    operations have ended, and lasts for `seconds` and at least `generations` * `at_once`
    operations.
    """
    ended: list[tuple[float, float]] = []
    marks: list[tuple[int, float, Mapping[str, float]]] = []
    is_complete = asyncio.Event()

    def add_mark() -> None:
        marks.append((len(ended), time.perf_counter(), probe()))

    async def caller() -> None:
        while not is_complete.is_set():
            operation_start = time.perf_counter()
            await operation()
            now = time.perf_counter()
            ended.append((now, now - operation_start))
            if not marks and len(ended) >= at_once:
                add_mark()
            elif (
                marks
                and len(ended) >= marks[0][0] + generations * at_once
                and now >= marks[0][1] + seconds
            ):
                is_complete.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(caller())
        await is_complete.wait()
        add_mark()
    (skipped, start_time, before), (last, end_time, after) = marks[0], marks[-1]
    waits = tuple(wait for _, wait in ended[skipped:last])
    return Run(at_once, len(waits), end_time - start_time, waits, _difference(after, before))


async def run_many(operation: Operation, count: int, at_once: int) -> None:
    """Run an operation `count` times, with `at_once` callers, and measure nothing."""
    remaining = count

    async def caller() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            await operation()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, count)):
            group.create_task(caller())
