"""A small soak test: `scripts/soak` runs a thousand deliberations, this one a hundred and ten with
tools.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import soak

pytestmark = [pytest.mark.e2e, pytest.mark.kills]


async def test_many_deliberations_leave_nothing_behind(tmp_path: Path) -> None:
    messages: list[str] = []
    soaked = await soak(tmp_path, text=100, with_tools=10, at_once=16, announce=messages.append)
    assert soaked.problems == [], messages
    assert soaked.after.must_stay["records in WORK"] == 0
    assert soaked.after.must_stay["records in DEAD"] == 0
    decided = (
        soaked.after.may_grow["records in KV_deliberations"]
        - soaked.before.may_grow["records in KV_deliberations"]
    )
    assert decided == 100 + 10, "every one of them was decided"
    assert soaked.after.must_stay["processes of host"] == 1
