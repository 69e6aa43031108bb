"""Councils whose blocks of Python really run: Monty in a sandbox, beside real workspaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from moothall.domain.tool import BLOCK_LIMITS, BlockLimits
from moothall.testing.model import Answer
from moothall.workspace.runner import LocalRunner
from support.council import CouncilEnvironment, open_council
from support.local import local


@asynccontextmanager
async def open_coding_council(
    folder: Path, answer: Answer, limits: BlockLimits = BLOCK_LIMITS, **settings: Any
) -> AsyncIterator[CouncilEnvironment]:
    """Open a council in `folder` like `open_council`, with a runner with `limits`."""
    async with local(folder / "data") as app:
        runner = LocalRunner(app.settings, app.workspaces.pool, limits)
        async with open_council(
            folder, answer, run_code=runner.run, block_limits=limits, **settings
        ) as council:
            yield council
