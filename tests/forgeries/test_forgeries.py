"""Patches that want a proof without an answer: none ends proven, judged by the same re-check as any candidate. See docs/evidence.md."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import corpus_more as more
import corpus_tables as tables
import pytest

import corpus_others as others
import corpus_python as python
from judge import PYTEST, UNITTEST_COMMAND, court
from moothall.config import Limits
from moothall.domain.proposal import Proposal

pytestmark = pytest.mark.e2e
Patches = Mapping[str, Mapping[str, str]]
FOLLOWED = (
    *("makereport-through-gc", "reports-class", "callinfo", "runner-by-subclasses", "act-by-test-name", "act-by-test-hash"),
    *("expectation-from-frames", "always-equal", "mock-any", "hidden-exec", "report-then-exit"),
)
"""Those that a counter-proof finds out by itself, whatever their lines reach for."""


async def winners(
    folder: Path, base: Mapping[str, str], argv: tuple[str, ...], patches: Patches, *, look: bool = True
) -> list[str]:
    gate = asyncio.Semaphore(3)

    async with court(folder, base, argv) as place:

        async def one(name: str) -> str:
            async with gate:
                won, _ = await place.judge(patches[name], look=look)
                return name if won else ""

        return [name for name in await asyncio.gather(*map(one, patches)) if name]


@pytest.mark.parametrize("group", ["IN_PROCESS", "FILES"])
async def test_no_forgery_of_pytest_is_proven(tmp_path: Path, group: str) -> None:
    patches = {**getattr(python, group), **(more.PYTEST if group == "IN_PROCESS" else {})}
    assert await winners(tmp_path, python.PYTEST_BASE, PYTEST, patches) == []


async def test_no_forgery_of_unittest_is_proven(tmp_path: Path) -> None:
    assert await winners(tmp_path, python.UNITTEST_BASE, UNITTEST_COMMAND, python.UNITTEST) == []


@pytest.mark.parametrize(
    ("program", "base", "patches"),
    [
        ("go", others.GO_BASE, {**others.GO_PATCHES, **more.GO}),
        ("node", others.NODE_BASE, {**others.NODE_PATCHES, **more.NODE}),
        ("cargo", others.RUST_BASE, {**others.RUST_PATCHES, **more.RUST}),
    ],
)
async def test_no_forgery_of_another_language_is_proven(
    tmp_path: Path, program: str, base: Mapping[str, str], patches: Patches
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; apt-get install golang, nodejs npm or cargo brings it")
    assert await winners(tmp_path, base, (), patches) == []


@pytest.mark.parametrize(
    ("program", "base", "patches"),
    [
        ("go", tables.GO_BASE, tables.GO),
        ("node", tables.NODE_BASE, tables.NODE),
        ("cargo", tables.RUST_BASE, tables.RUST),
    ],
)
async def test_an_answer_that_is_read_from_a_table_of_the_tests_is_found_by_itself(
    tmp_path: Path, program: str, base: Mapping[str, str], patches: Patches
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; apt-get install golang, nodejs npm or cargo brings it")
    assert await winners(tmp_path, base, (), patches, look=False) == ["right"]


async def test_a_counter_proof_finds_them_by_itself(tmp_path: Path) -> None:
    patches = {name: python.IN_PROCESS[name] for name in FOLLOWED}
    assert await winners(tmp_path, python.PYTEST_BASE, PYTEST, patches, look=False) == []


async def test_code_that_sees_no_test_agrees_with_them_where_it_is_right_or_made_of_their_values(tmp_path: Path) -> None:
    """A stronger proof: of what rewrites reports, runner or tests nothing is left; objects equal to all are for the counter-proof."""
    patches = {
        "right": {"shop/price.py": python.RIGHT},
        **python.HARD_CODED,
        **{name: python.IN_PROCESS[name] for name in FOLLOWED},
    }
    async with court(tmp_path, python.PYTEST_BASE, PYTEST) as place:
        gate = asyncio.Semaphore(3)

        async def agrees(name: str) -> str:
            async with gate:
                judged = await place.bench(f"apart-{name}").judge(Proposal("agent-dev-001", "dev", "", place.diff(patches[name])))
            return name if judged.candidate.apart else ""

        agreeing = {name for name in await asyncio.gather(*map(agrees, patches)) if name}
    assert agreeing == {"right", "hard-coded", "always-equal", "mock-any"}


async def test_a_right_answer_wins_and_values_that_are_all_right_cannot_be_told_from_one(tmp_path: Path) -> None:
    patches = {"right": {"shop/price.py": python.RIGHT}, **python.HARD_CODED}
    assert await winners(tmp_path, python.PYTEST_BASE, PYTEST, patches) == ["right", "hard-coded"]


async def test_tests_that_wait_for_ever_without_the_code_in_their_process_hold_nobody_up(tmp_path: Path) -> None:
    waiting = """import threading

from shop.price import discount


def test_told():
    assert discount(200, 10) == 180
    assert type(discount) is type(test_told) or threading.Event().wait()
"""
    base = {**python.PYTEST_BASE, "tests/test_wait.py": waiting}
    async with court(tmp_path, base, PYTEST) as place:
        bench = place.bench("waiting", Limits(apart_seconds=2.0))
        judged = await bench.judge(Proposal("agent-dev-001", "dev", "", place.diff({"shop/price.py": python.RIGHT})))
    assert judged.assessment.proven
    assert "tests/test_wait.py::test_told" in judged.assessment.fixed
    assert not judged.candidate.apart
