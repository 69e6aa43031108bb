"""A story's budget on the embedded bus: two hundred concurrent deliberations in several
processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from moothall.authorization.budgets import BUCKET, StoryBudgets
from moothall.config import BusSettings, LimitSettings
from moothall.domain.budget import Budget
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server
from support.spending import STORY, TENANT

pytestmark = pytest.mark.e2e

TOKENS, PROCESSES, EACH = 20_000, 4, 50
TESTS = Path(__file__).parents[1]


async def _process(url: str, number: int) -> dict[str, int]:
    command = (sys.executable, "-m", "support.spending", url, str(number), str(EACH), str(TOKENS))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    stdout, _ = await process.communicate()
    assert process.returncode == 0
    counts: dict[str, int] = json.loads(stdout)
    return counts


async def test_two_hundred_concurrent_deliberations_never_overspend(tmp_path: Path) -> None:
    async with embedded_server(BusSettings(), tmp_path / "bus") as url:
        ends = await asyncio.gather(*(_process(url, number) for number in range(PROCESSES)))
        async with open_bus(BusSettings(), url) as bus:
            book = await StoryBudgets(bus.bucket(BUCKET), LimitSettings()).of(
                STORY, TENANT, Budget(tokens=TOKENS)
            )
    used, refused = sum(end["used"] for end in ends), sum(end["refused"] for end in ends)
    assert len(book.draws) == PROCESSES * EACH
    assert refused > 0, "the budget was sufficient for all"
    assert TOKENS * 0.8 < used <= TOKENS
    assert (book.spent.tokens, book.reserved.tokens, book.left.tokens) == (used, 0, TOKENS - used)
