"""Patches that want a proof without an answer: none ends proven, judged by the same re-check as any candidate. See docs/evidence.md."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
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
import corpus_tables as tables
import corpus_taken as taken
import corpus_traces as traces
import pytest

import corpus_others as others
import corpus_python as python
from judge import PYTEST, UNITTEST_COMMAND, court
from moothall.config import LimitSettings
from moothall.council.judging.recheck import Judged
from moothall.domain.proposal import Proposal

pytestmark = pytest.mark.e2e
Patches = Mapping[str, Mapping[str, str]]
AROUND = {
    **around.GROUPS,
    **around_others.GROUPS,
    **taken.GROUPS,
    **asked.GROUPS,
    **asked_others.GROUPS,
    **alone.GROUPS,
    **alone_others.GROUPS,
    **honest.GROUPS,
    **held.GROUPS,
    **held_others.GROUPS,
}
IN_PYTEST = {
    "in its process": python.IN_PROCESS,
    "by files": python.FILES,
    "by more": {**more.PYTEST, **fresh.PYTEST, **traces.PYTEST},
}
FOUND = (
    "around equal",
    "around close",
    "around less",
    "around within",
    "around true",
    "taken kind",
    "taken near",
    "taken begins",
    "asked instance",
    "asked not in",
    "asked unlike",
    "asked digits",
    "asked beside",
    "alone whole",
    "alone rest",
    "held equal",
    "held handed",
    "held none",
    "held go",
    "held rust",
)
"""Groups whose patches a counter-proof finds out by itself."""
FOLLOWED = (
    *("makereport-through-gc", "reports-class", "callinfo", "runner-by-subclasses", "act-by-test-name", "act-by-test-hash"),
    *("expectation-from-frames", "always-equal", "mock-any", "hidden-exec", "report-then-exit"),
)
"""Those that a counter-proof finds out by itself, whatever their lines reach for."""


def replace_look(judged: Judged) -> Judged:
    """Nobody minds what its lines reach for."""
    return replace(judged, assessment=replace(judged.assessment, look=()))


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


@pytest.mark.parametrize("patches", IN_PYTEST.values(), ids=IN_PYTEST)
async def test_no_forgery_of_pytest_is_proven(tmp_path: Path, patches: Patches) -> None:
    assert await winners(tmp_path, python.PYTEST_BASE, PYTEST, patches) == []


async def test_no_forgery_of_unittest_is_proven(tmp_path: Path) -> None:
    assert await winners(tmp_path, python.UNITTEST_BASE, UNITTEST_COMMAND, {**python.UNITTEST, **fresh.UNITTEST}) == []


async def test_an_example_of_documentation_that_is_altered_proves_nothing(tmp_path: Path) -> None:
    argv = (*PYTEST, "--doctest-modules")
    right = {
        "shop/price.py": fresh.DOCTEST_BASE["shop/price.py"].replace("return price\n", "return price - price * percent // 100\n")
    }
    assert await winners(tmp_path / "a", fresh.DOCTEST_BASE, argv, {**fresh.DOCTEST, "right": right}) == ["right"]
    if shutil.which("cargo"):
        assert await winners(tmp_path / "b", fresh.RUST_DOC_BASE, (), fresh.RUST_DOC) == []


async def test_one_that_acts_by_what_it_reads_of_the_tests_is_found_by_itself(tmp_path: Path) -> None:
    """The disk never has the tests in other words: whatever the lines reach for, a verdict by reading them does not follow."""
    patches = {name: fresh.PYTEST[name] for name in ("equal-while-it-holds", "equal-by-metaclass", "pickle", "type-hints")}
    assert await winners(tmp_path / "a", python.PYTEST_BASE, PYTEST, patches, look=False) == []
    assert await winners(tmp_path / "b", python.UNITTEST_BASE, UNITTEST_COMMAND, fresh.UNITTEST, look=False) == []


@pytest.mark.parametrize(
    ("program", "base", "patches"),
    [
        ("go", others.GO_BASE, {**others.GO_PATCHES, **more.GO, **fresh.GO}),
        ("node", others.NODE_BASE, {**others.NODE_PATCHES, **more.NODE, **fresh.NODE}),
        ("cargo", others.RUST_BASE, {**others.RUST_PATCHES, **more.RUST, **fresh.RUST}),
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
        ("go", others.GO_BASE, disk.GO),
        ("node", others.NODE_BASE, disk.NODE),
        ("cargo", others.RUST_BASE, disk.RUST),
    ],
)
async def test_an_answer_that_follows_the_files_of_the_tests_is_found_by_itself(
    tmp_path: Path, program: str, base: Mapping[str, str], patches: Patches
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; apt-get install golang, nodejs npm or cargo brings it")
    assert await winners(tmp_path, base, (), patches, look=False) == ["right"]


@pytest.mark.parametrize("name", AROUND)
async def test_nobody_goes_around_the_code(tmp_path: Path, name: str) -> None:
    group = AROUND[name]
    if shutil.which(group.program) is None:
        pytest.skip(f"{group.program} is not installed; apt-get install golang, nodejs npm or cargo brings it")
    assert await winners(tmp_path, group.base, group.argv, group.patches, look=name not in FOUND) == ["right"]


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


@pytest.mark.parametrize(
    ("name", "stands"), [("right", True), ("hard-coded", True), ("always-equal", False), ("equal-while-it-holds", False)]
)
async def test_a_proof_by_another_seats_tests_alone_is_put_to_the_test(tmp_path: Path, name: str, *, stands: bool) -> None:
    patches = {"right": {"shop/price.py": python.RIGHT}, **python.HARD_CODED, **python.IN_PROCESS, **fresh.PYTEST}
    brought = {
        "tests/test_percent.py": "from shop.price import discount\n\n\ndef test_percent():\n    assert discount(200, 10) == 180\n"
    }
    green = "from shop.price import total\n\n\ndef test_total():\n    assert total([1, 2, 3]) == 6\n"
    async with court(tmp_path, {**python.BASE, "tests/test_price.py": green}, PYTEST) as place:
        bench = place.bench("brought")
        author = Proposal("agent-dev-001", "dev", "", place.diff({**patches["right"], **brought}), own_tests=tuple(brought))
        # Written in other words than the author's, or it would be the same code.
        other = Proposal("agent-dev-002", "dev", "", place.diff(patches[name]))
        judged = [await bench.judge(author), replace_look(await bench.judge(other))]
        _, crossed = await bench.cross(judged)
        assert crossed.candidate.proven
        assert not crossed.assessment.proven
        confirmed = await bench.confirm(crossed)
    assert confirmed.counter is not None
    assert confirmed.counter.verdict == ("passed" if stands else "failed")
    assert (confirmed.passes and confirmed.candidate.proven) is stands


async def test_tests_that_wait_for_ever_without_the_code_in_their_process_hold_nobody_up(tmp_path: Path) -> None:
    waiting = """import threading

from shop.price import discount


def test_told():
    assert discount(200, 10) == 180
    assert type(discount) is type(test_told) or threading.Event().wait()
"""
    base = {**python.PYTEST_BASE, "tests/test_wait.py": waiting}
    async with court(tmp_path, base, PYTEST) as place:
        bench = place.bench("waiting", LimitSettings(apart_seconds=2.0))
        judged = await bench.judge(Proposal("agent-dev-001", "dev", "", place.diff({"shop/price.py": python.RIGHT})))
    assert judged.assessment.proven
    assert "tests/test_wait.py::test_told" in judged.assessment.fixed
    assert not judged.candidate.apart
