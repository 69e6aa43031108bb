"""Pools of candidates on small projects: selection with the tests of the right seat, and without
any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.domain.evidence import EvidenceLevel
from moothall.domain.proposal import CandidateRank
from moothall.ranking import rank
from support.judged_base import PYTEST, UNITTEST, judged_base
from support.pools import read_pool

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

_POOLS = sorted(Path(__file__).parent.glob("pools/*.toml"))
_COMMANDS = {"pytest": PYTEST, "unittest": UNITTEST, "": ()}


@pytest.mark.parametrize("path", _POOLS, ids=[path.stem for path in _POOLS])
async def test_the_right_answer_is_selected_or_nothing_is_claimed(
    tmp_path: Path, path: Path
) -> None:
    pool = read_pool(path)
    pool.skip_without_program()
    right, second = (item for item in pool.candidates if item.right)
    wrong_candidate, other_wrong = (item for item in pool.candidates if not item.right)
    async with judged_base(tmp_path, pool.base, _COMMANDS[pool.command], task=pool.task) as place:
        evaluator = place.evaluator()

        async def judge(**seats: Mapping[str, str]) -> dict[str, CandidateRank]:
            proposals = [
                place.proposal(files, seat) for seat, files in enumerate(seats.values(), 1)
            ]
            judged = await asyncio.gather(*map(evaluator.evaluate, proposals))
            names = dict(zip([item.seat for item in proposals], seats, strict=True))
            return {
                names[item.seat]: item for item in rank(await evaluator.run_cross_tests(judged))
            }

        mistaken, other_wrong_files = pool.files(wrong_candidate), pool.files(other_wrong)
        silent = await judge(wrong=mistaken, right=pool.files(right), other=other_wrong_files)
        new_file = await judge(
            wrong=mistaken, right={**pool.files(right), **pool.new_file}, other=other_wrong_files
        )
        existing = await judge(
            second=pool.files(second), right=pool.files(right, *pool.test_edits), wrong=mistaken
        )

    assert all(item.passed_gates and item.undecided for item in silent.values()), _reasons(silent)
    assert {item.level for item in silent.values()} == {EvidenceLevel.UNPROVEN}

    assert next(iter(new_file)) == "right", _reasons(new_file)
    assert not new_file["right"].undecided
    assert [new_file[name].level for name in ("right", "wrong", "other")] == [
        EvidenceLevel.SELF_TESTED,
        EvidenceLevel.UNPROVEN,
        EvidenceLevel.UNPROVEN,
    ], _reasons(new_file)

    assert list(existing)[-1] == "wrong", _reasons(existing)
    assert [existing[name].level for name in ("right", "second", "wrong")] == [
        EvidenceLevel.SELF_TESTED,
        EvidenceLevel.REPRODUCED,
        EvidenceLevel.UNPROVEN,
    ], _reasons(existing)


def _reasons(ranked: Mapping[str, CandidateRank]) -> str:
    return "\n".join(f"{name}: {item.level} {item.reasons}" for name, item in ranked.items())
