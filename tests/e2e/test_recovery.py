"""A sample of the kill matrix (scripts/test-recovery runs all of it): every process kind at one
boundary.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.event import EventType
from support.recovery.app import KINDS
from support.recovery.matrix import Matrix, kills

pytestmark = [pytest.mark.e2e, pytest.mark.kills]


async def test_a_kill_of_each_kind_of_process_changes_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    matrix = Matrix(tmp_path)
    boundaries = [
        plan
        for plan in await matrix.references()
        if plan.blow and plan.blow.type is EventType.CHECK_FINISHED
    ]
    await matrix.run(kills(boundaries[:1], KINDS), lanes=1)
    report = matrix.report
    assert {
        result.plan.blow.kind for result in report.results if result.plan.blow and result.hit
    } == set(KINDS)
    assert [
        (str(result.plan.blow), report.problems(result))
        for result in report.results
        if report.problems(result)
    ] == []
    assert report.left == []
