"""A long day in minutes: many deliberations on one server. Does memory grow, is anything left
behind?
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.leftovers import Things, look
from benchmarks.load import many
from benchmarks.served import Served, served
from benchmarks.stub import running_stub
from benchmarks.tools import repository, tools_act
from benchmarks.workload import text_act

_CHUNKS = 10
_WARM = 0.2  # share of the text deliberations that nothing is said of
_SETTLE_SECONDS = 60
_GRAPH = {"MOOTHALL_GRAPH__KEEP": "50"}  # full after the warming up, so that it is flat too
ALLOWED_KB = {"bus": 40.0}
"""Kilobytes that a deliberation may add to a part's memory for good. The bus remembers the ids of
an hour's messages, about 100 bytes each and fifty a deliberation, and the subjects of its log.
"""
_ALLOWED_KB = 6.0
_ALLOWED_FILES = 10


@dataclass(frozen=True, slots=True)
class Soaked:
    """`memory` is PSS in bytes by part after each chunk; `grew` what a deliberation added in
    kilobytes, by a line through them.
    """

    text: int
    with_tools: int
    at_once: int
    memory: Mapping[str, Sequence[int]]
    grew: Mapping[str, float]
    before: Things
    after: Things
    problems: Sequence[str]

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        grown = {
            name: (self.before.may_grow.get(name, 0), now)
            for name, now in self.after.may_grow.items()
        }
        return {
            "text": self.text,
            "with_tools": self.with_tools,
            "at_once": self.at_once,
            "memory": {
                part: [value / 1e6 for value in values] for part, values in self.memory.items()
            },
            "grew_kb": dict(self.grew),
            "stayed": dict(self.after.must_stay),
            "grown": grown,
            "problems": list(self.problems),
        }


async def soak(
    folder: Path, *, text: int, with_tools: int, at_once: int, announce: Callable[[str], None]
) -> Soaked:
    """Run them and compare. The server is looked at idle, before and after, once it has done a few
    of each kind.
    """
    async with running_stub() as stub, served(folder / "data", stub.base_url, _GRAPH) as app:
        announce("soak: warming up")
        await stub.set(delay_ms=20)
        tools = tools_act(app, await repository(app, folder / "sample"))
        words = text_act(app)
        await tools()
        await many(words, max(int(text * _WARM), at_once), at_once)
        before = await _settled(app)
        memory: dict[str, list[int]] = {}
        _note(memory, app)
        for number in range(_CHUNKS):
            announce(f"soak: {text * number // _CHUNKS} of {text} about text, {at_once} at once")
            await many(words, text // _CHUNKS, at_once)
            _note(memory, app)
        announce(f"soak: {with_tools} with tools, 4 at once")
        await many(tools, with_tools, 4)
        after = await _settled(app, before)
    # The first looks are the least settled: the line is drawn through the second half.
    grew = {
        part: slope(values[len(values) // 2 :]) / (text / _CHUNKS) / 1024
        for part, values in memory.items()
    }
    return Soaked(
        text,
        with_tools,
        at_once,
        memory,
        grew,
        before,
        after,
        [*_grown(grew, text), *after.left_since(before), *_files(before, after)],
    )


async def _settled(app: Served, before: Things | None = None) -> Things:
    """Look until two looks agree, or for as long as something is there that was not before: both
    take seconds, not minutes.
    """
    last = await look(app)
    for _ in range(_SETTLE_SECONDS):
        await asyncio.sleep(1)
        now = await look(app)
        if now.must_stay == last.must_stay and (before is None or not now.left_since(before)):
            return now
        last = now
    return last


def _note(memory: dict[str, list[int]], app: Served) -> None:
    for part, value in app.system.held().pss.items():
        memory.setdefault(part, []).append(value)


def slope(values: Sequence[int]) -> float:
    """The least-squares line's rise from one value to the next."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    over = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    return over / (sum((place - middle) ** 2 for place in range(len(values))) or 1)


def _grown(grew: Mapping[str, float], text: int) -> list[str]:
    # A short run says nothing of memory: what one garbage collection more or less does is larger
    # than all of it.
    if text < 1000:  # noqa: PLR2004
        return []
    return [
        f"memory of {part} grows by {kilobytes:.1f} KB a deliberation"
        for part, kilobytes in grew.items()
        if kilobytes > ALLOWED_KB.get(part, _ALLOWED_KB) and part != "sandbox"
    ]


def _files(before: Things, after: Things) -> list[str]:
    opened = (
        (name, before.may_grow.get(name, 0), now)
        for name, now in after.may_grow.items()
        if name.startswith("open files")
    )
    return [
        f"{name}: {was} before, {now} after"
        for name, was, now in opened
        if now > was + _ALLOWED_FILES
    ]
