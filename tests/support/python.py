"""Councils whose blocks of Python really run: Monty in a sandbox, beside real workspaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from moothall.config import RunnerSettings
from moothall.testing.model import Answer
from moothall.workspace.runner import LocalRunner
from support.council import CouncilEnvironment, open_council
from support.local import local


@asynccontextmanager
async def open_coding_council(
    folder: Path, answer: Answer, python: RunnerSettings | None = None, **settings: Any
) -> AsyncIterator[CouncilEnvironment]:
    """Open a council in `folder` like `open_council`, with a runner for the settings `python`."""
    limits = python or RunnerSettings()
    async with local(folder / "data") as app:
        runner = LocalRunner(
            app.settings.model_copy(update={"runner": limits}), app.workspaces.pool
        )
        async with open_council(
            folder, answer, run_code=runner.run, python=limits, **settings
        ) as council:
            yield council
