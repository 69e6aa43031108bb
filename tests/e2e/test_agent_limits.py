"""An agent's own limits in the real sandbox: they narrow the configured limits and never widen
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moothall.domain.evidence import CheckRun
from moothall.domain.tool import Bounds
from support.local import local, python

pytestmark = pytest.mark.e2e
MB = 10**6


async def run(folder: Path, code: str, bounds: Bounds) -> CheckRun:
    """Run code as a check of a workspace with these bounds, where the settings allow 256 MB."""
    async with local(folder, {"a.txt": "a\n"}, memory_bytes=256 * MB) as app:
        prepared = replace(await app.prepared({"run": python(code)}), bounds=bounds)
        async with app.workspaces.open(prepared, "bounded") as workspace:
            return await workspace.check("run")


HOLD = "held = bytearray(b'x') * {}_000_000; print(len(held))"


@pytest.mark.parametrize(
    ("size", "bounds", "status"),
    [
        (225, Bounds(), "success"),
        (225, Bounds(memory_bytes=128 * MB), "memory"),
        (600, Bounds(memory_bytes=4000 * MB), "memory"),
    ],
    ids=["the settings'", "narrower", "not wider"],
)
async def test_memory_is_bounded(tmp_path: Path, size: int, bounds: Bounds, status: str) -> None:
    result = await run(tmp_path, HOLD.format(size), bounds)
    assert result.status == status, result.output


async def test_processor_time_is_bounded_by_the_share_and_measured(tmp_path: Path) -> None:
    result = await run(tmp_path, "while True: pass", Bounds(cpu_share=0.02))
    assert result.status == "cpu", result.output
    assert result.usage.cpu_ms > 0
    assert result.usage.max_rss_bytes > MB
