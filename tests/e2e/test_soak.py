"""A small soak test: `scripts/soak` runs a thousand deliberations, this one a hundred and ten with
tools.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import run_soak

pytestmark = [pytest.mark.e2e, pytest.mark.kills]


async def test_many_deliberations_leave_nothing_behind(tmp_path: Path) -> None:
    messages: list[str] = []
    result = await run_soak(tmp_path, text=100, with_tools=10, at_once=16, announce=messages.append)
    assert result.problems == [], messages
    assert result.after.fixed["records in WORK"] == 0
    assert result.after.fixed["records in DEAD"] == 0
    decided = (
        result.after.cumulative["records in KV_deliberations"]
        - result.before.cumulative["records in KV_deliberations"]
    )
    assert decided == 100 + 10, "every one of them was decided"
    assert result.after.fixed["processes of host"] == 1
