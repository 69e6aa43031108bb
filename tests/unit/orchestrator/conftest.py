from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.testing.model import Answer
from support.council import CouncilEnvironment, open_council


@pytest.fixture
def council(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[CouncilEnvironment]]:
    """Open a council of scripted answers."""

    @asynccontextmanager
    async def open_with(answer: Answer, **settings: Any) -> AsyncIterator[CouncilEnvironment]:
        async with open_council(tmp_path, answer, **settings) as app:
            yield app

    return open_with
