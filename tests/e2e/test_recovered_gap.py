"""Small programs with hidden cases: selection compared with chance and with the best possible
choice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gap import choose, recovered_gap
from support.small_programs import PROGRAMS

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]


async def test_hidden_cases_recover_the_gap_between_chance_and_the_best_choice(
    tmp_path: Path,
) -> None:
    choices = await choose(tmp_path, PROGRAMS[:4], seed=1)
    assert any(0 < item.right < item.size for item in choices)
    assert recovered_gap(choices) == 1, choices
