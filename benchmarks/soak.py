"""A soak test: run many deliberations on one server, and detect leaks of memory and other
resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import run_many
from benchmarks.resource_counts import ResourceCounts, count_resources
from benchmarks.server import Server, run_server
from benchmarks.stub import running_stub
from benchmarks.tools import make_repository, tools_operation
from benchmarks.workload import text_operation

_CHUNKS = 10
_WARM_UP_SHARE = 0.2  # of the text deliberations; they are not measured
_SETTLE_SECONDS = 60
_GRAPH = {"MOOTHALL_GRAPH__KEEP": "50"}  # full after the warm-up, so that its memory is constant
MAX_KB = {"bus": 40.0}
"""Kilobytes that a deliberation may permanently add to the memory of a part. The bus stores the ids
of the messages of an hour, about 100 bytes each and fifty a deliberation, and its subjects.
"""
_MAX_KB = 6.0
_MAX_NEW_FILES = 10


@dataclass(frozen=True, slots=True)
class SoakResult:
    """The result of a soak test.

    memory: the PSS in bytes by part after each chunk.
    growth_kb: the kilobytes that a deliberation added, by linear regression.
    """

    text: int
    with_tools: int
    at_once: int
    memory: Mapping[str, Sequence[int]]
    growth_kb: Mapping[str, float]
    before: ResourceCounts
    after: ResourceCounts
    problems: Sequence[str]

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        changes = {
            name: (self.before.cumulative.get(name, 0), count)
            for name, count in self.after.cumulative.items()
        }
        return {
            "text": self.text,
            "with_tools": self.with_tools,
            "at_once": self.at_once,
            "memory": {
                part: [value / 1e6 for value in values] for part, values in self.memory.items()
            },
            "growth_kb": dict(self.growth_kb),
            "fixed": dict(self.after.fixed),
            "cumulative": changes,
            "problems": list(self.problems),
        }


async def run_soak(
    folder: Path, *, text: int, with_tools: int, at_once: int, announce: Callable[[str], None]
) -> SoakResult:
    """Run the deliberations, and compare the idle server before and after. It first runs some
    deliberations of each kind as a warm-up.
    """
    async with running_stub() as stub, run_server(folder / "data", stub.base_url, _GRAPH) as app:
        announce("soak: warming up")
        await stub.set(delay_ms=20)
        deliberate_with_tools = tools_operation(app, await make_repository(app, folder / "sample"))
        deliberate_on_text = text_operation(app)
        await deliberate_with_tools()
        await run_many(deliberate_on_text, max(int(text * _WARM_UP_SHARE), at_once), at_once)
        before = await _count_when_idle(app)
        memory: dict[str, list[int]] = {}
        _add_memory(memory, app)
        for number in range(_CHUNKS):
            announce(f"soak: {text * number // _CHUNKS} of {text} on text, {at_once} at once")
            await run_many(deliberate_on_text, text // _CHUNKS, at_once)
            _add_memory(memory, app)
        announce(f"soak: {with_tools} with tools, 4 at once")
        await run_many(deliberate_with_tools, with_tools, 4)
        after = await _count_when_idle(app, before)
    # Memory still changes in the first half, so only the second half is used.
    growth_kb = {
        part: slope(values[len(values) // 2 :]) / (text / _CHUNKS) / 1024
        for part, values in memory.items()
    }
    return SoakResult(
        text,
        with_tools,
        at_once,
        memory,
        growth_kb,
        before,
        after,
        [
            *_memory_problems(growth_kb, text),
            *after.increases_since(before),
            *_file_problems(before, after),
        ],
    )


async def _count_when_idle(app: Server, before: ResourceCounts | None = None) -> ResourceCounts:
    """Count until two counts are equal and no fixed count exceeds that of `before`, at most for
    `_SETTLE_SECONDS`.
    """
    last = await count_resources(app)
    for _ in range(_SETTLE_SECONDS):
        await asyncio.sleep(1)
        now = await count_resources(app)
        if now.fixed == last.fixed and (before is None or not now.increases_since(before)):
            return now
        last = now
    return last


def _add_memory(memory: dict[str, list[int]], app: Server) -> None:
    for part, value in app.system.memory_usage().pss.items():
        memory.setdefault(part, []).append(value)


def slope(values: Sequence[int]) -> float:
    """Return the slope of the least-squares line through values at equal distances."""
    center, mean = (len(values) - 1) / 2, sum(values) / len(values)
    covariance = sum((i - center) * (value - mean) for i, value in enumerate(values))
    return covariance / (sum((i - center) ** 2 for i in range(len(values))) or 1)


def _memory_problems(growth_kb: Mapping[str, float], text: int) -> list[str]:
    # In a short run, a single garbage collection has a larger effect than a leak.
    if text < 1000:  # noqa: PLR2004
        return []
    return [
        f"memory of {part} grows by {kilobytes:.1f} KB a deliberation"
        for part, kilobytes in growth_kb.items()
        if kilobytes > MAX_KB.get(part, _MAX_KB) and part != "sandbox"
    ]


def _file_problems(before: ResourceCounts, after: ResourceCounts) -> list[str]:
    counts = (
        (name, before.cumulative.get(name, 0), count)
        for name, count in after.cumulative.items()
        if name.startswith("open files")
    )
    return [
        f"{name}: {old} before, {new} after"
        for name, old, new in counts
        if new > old + _MAX_NEW_FILES
    ]
