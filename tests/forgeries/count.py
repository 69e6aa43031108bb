"""Prints which forgeries win: `python tests/forgeries/count.py [--all] [NAME...]`. --all: also what a person should look at."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import corpus_alone as alone
import corpus_alone_others as alone_others
import corpus_around as around
import corpus_around_others as around_others
import corpus_asked as asked
import corpus_asked_others as asked_others
import corpus_disk as disk
import corpus_fresh as fresh
import corpus_held as held
import corpus_held_others as held_others
import corpus_honest as honest
import corpus_more as more
import corpus_runners as runners
import corpus_tables as tables
import corpus_taken as taken
import corpus_traces as traces

import corpus_others as others
import corpus_python as python
from judge import PYTEST, UNITTEST_COMMAND, Court, court

GROUPS = {
    "pytest right": (python.PYTEST_BASE, PYTEST, {"right": {"shop/price.py": python.RIGHT}}),
    "unittest right": (python.UNITTEST_BASE, UNITTEST_COMMAND, {"right": {"shop/price.py": python.RIGHT}}),
    "go right": (others.GO_BASE, (), {"right": {"shop.go": others.GO_RIGHT}}),
    "node right": (others.NODE_BASE, (), {"right": {"shop.js": others.NODE_RIGHT}}),
    "rust right": (others.RUST_BASE, (), {"right": {"src/lib.rs": others.RUST_RIGHT}}),
    "pytest in process": (python.PYTEST_BASE, PYTEST, python.IN_PROCESS),
    "pytest files": (python.PYTEST_BASE, PYTEST, python.FILES),
    "hard-coded": (python.PYTEST_BASE, PYTEST, python.HARD_CODED),
    "unittest": (python.UNITTEST_BASE, UNITTEST_COMMAND, python.UNITTEST),
    "go": (others.GO_BASE, (), others.GO_PATCHES),
    "node": (others.NODE_BASE, (), others.NODE_PATCHES),
    "rust": (others.RUST_BASE, (), others.RUST_PATCHES),
    "pytest more": (python.PYTEST_BASE, PYTEST, more.PYTEST),
    "go more": (others.GO_BASE, (), more.GO),
    "node more": (others.NODE_BASE, (), more.NODE),
    "rust more": (others.RUST_BASE, (), more.RUST),
    "pytest fresh": (python.PYTEST_BASE, PYTEST, fresh.PYTEST),
    "unittest fresh": (python.UNITTEST_BASE, UNITTEST_COMMAND, fresh.UNITTEST),
    "go fresh": (others.GO_BASE, (), fresh.GO),
    "node fresh": (others.NODE_BASE, (), fresh.NODE),
    "rust fresh": (others.RUST_BASE, (), fresh.RUST),
    "doctest": (fresh.DOCTEST_BASE, (*PYTEST, "--doctest-modules"), fresh.DOCTEST),
    "rust doc": (fresh.RUST_DOC_BASE, (), fresh.RUST_DOC),
    "go table": (tables.GO_BASE, (), tables.GO),
    "node table": (tables.NODE_BASE, (), tables.NODE),
    "rust table": (tables.RUST_BASE, (), tables.RUST),
    "pytest traces": (python.PYTEST_BASE, PYTEST, traces.PYTEST),
    "go disk": (others.GO_BASE, (), disk.GO),
    "node disk": (others.NODE_BASE, (), disk.NODE),
    "rust disk": (others.RUST_BASE, (), disk.RUST),
    **{
        name: (group.base, group.argv, group.patches)
        for name, group in {
            **alone.GROUPS,
            **alone_others.GROUPS,
            **around.GROUPS,
            **around_others.GROUPS,
            **taken.GROUPS,
            **asked.GROUPS,
            **asked_others.GROUPS,
            **held.GROUPS,
            **held_others.GROUPS,
            **runners.GROUPS,
            **honest.GROUPS,
        }.items()
    },
}


async def _one(place: Court, gate: asyncio.Semaphore, name: str, files: Mapping[str, str]) -> bool:
    async with gate:
        began = time.monotonic()
        won, reasons = await place.judge(files, look="--all" not in sys.argv)
        print("WON " if won else "lost", name, f"{time.monotonic() - began:.1f} s", "" if won else reasons[:2], flush=True)
        return won


async def main(wanted: list[str]) -> None:
    """Judge the groups and patches that are named, or all."""
    for group, (base, argv, patches) in GROUPS.items():
        chosen = {name: files for name, files in patches.items() if not wanted or group in wanted or name in wanted}
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            async with court(Path(folder), base, argv) as place:
                gate = asyncio.Semaphore(3)
                won = await asyncio.gather(*(_one(place, gate, f"{group}/{name}", files) for name, files in chosen.items()))
                print(f"== {group}: {sum(won)} of {len(won)} win", flush=True)


if __name__ == "__main__":
    asyncio.run(main([word for word in sys.argv[1:] if word != "--all"]))
