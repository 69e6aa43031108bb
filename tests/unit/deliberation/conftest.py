from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.testing.model import Answer
from support.council import CouncilEnvironment, open_council

Open = Callable[..., AbstractAsyncContextManager[CouncilEnvironment]]


@pytest.fixture
def council(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_with(answer: Answer, **settings: Any) -> AsyncIterator[CouncilEnvironment]:
        async with open_council(tmp_path, answer, **settings) as app:
            yield app

    return open_with


@pytest.fixture
def native(tmp_path: Path) -> Open:
    """A council whose model calls tools natively."""

    @asynccontextmanager
    async def open_with(answer: Answer, **settings: Any) -> AsyncIterator[CouncilEnvironment]:
        options: dict[str, Any] = {
            "tools": True,
            "reply": "tools",
            "context_tokens": 100_000,
            "approaches": "auto",
        } | settings
        async with open_council(tmp_path, answer, **options) as app:
            yield app

    return open_with
