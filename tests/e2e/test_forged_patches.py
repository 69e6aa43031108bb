"""Patches that change their judges instead of the code: none is proven. Known gaps are listed in
docs/evidence.md.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import forged_patches as forged
import pytest

from support.judged_base import PYTEST, UNITTEST, JudgedBase, judged_base

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]
Patches = Mapping[str, Mapping[str, str]]


async def proven(place: JudgedBase, patches: Patches) -> list[str]:
    """Return the names of the patches that win as proven, each judged alone."""
    slots = asyncio.Semaphore(3)

    async def judge(name: str) -> str:
        async with slots:
            (ranked,) = await place.rank(patches[name])
        return name if ranked.passed_gates and ranked.proven else ""

    return [name for name in await asyncio.gather(*map(judge, patches)) if name]


async def test_no_forged_patch_is_proven_in_pytest(tmp_path: Path) -> None:
    async with judged_base(tmp_path, forged.PYTEST_BASE, PYTEST) as place:
        assert await proven(place, {**forged.FILES, "right": {"shop/price.py": forged.RIGHT}}) == [
            "right"
        ]


async def test_no_forged_patch_is_proven_in_unittest(tmp_path: Path) -> None:
    async with judged_base(tmp_path, forged.UNITTEST_BASE, UNITTEST) as place:
        assert await proven(
            place, {**forged.UNITTEST, "right": {"shop/price.py": forged.RIGHT}}
        ) == ["right"]


async def test_no_forged_patch_is_proven_in_altered_doctests(tmp_path: Path) -> None:
    solved = forged.DOCTEST_BASE["shop/price.py"].replace(
        "return price\n", "return price - price * percent // 100\n"
    )
    async with judged_base(tmp_path, forged.DOCTEST_BASE, (*PYTEST, "--doctest-modules")) as place:
        assert await proven(place, {**forged.DOCTEST, "right": {"shop/price.py": solved}}) == [
            "right"
        ]


@pytest.mark.parametrize(
    ("program", "base", "patches", "right"),
    [
        ("go", forged.GO_BASE, forged.GO_FILES, {"shop.go": forged.GO_RIGHT}),
        ("node", forged.NODE_BASE, forged.NODE_FILES, {"shop.js": forged.NODE_RIGHT}),
        ("cargo", forged.RUST_BASE, forged.RUST_FILES, {"src/lib.rs": forged.RUST_RIGHT}),
    ],
    ids=["go", "node", "rust"],
)
async def test_no_forged_patch_is_proven_in_other_languages(
    tmp_path: Path,
    program: str,
    base: Mapping[str, str],
    patches: Patches,
    right: Mapping[str, str],
) -> None:
    if shutil.which(program) is None:
        pytest.skip(
            f"{program} is not installed; apt-get install golang, nodejs npm or cargo brings it"
        )
    async with judged_base(tmp_path, base) as place:
        assert await proven(place, {**patches, "right": right}) == ["right"]
