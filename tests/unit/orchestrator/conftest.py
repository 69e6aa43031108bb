from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.testing.model import Answer
from support.council import CouncilHouse, open_council


@pytest.fixture
def council(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[CouncilHouse]]:
    """Open a council of scripted answers."""

    @asynccontextmanager
    async def opened(answer: Answer, **settings: Any) -> AsyncIterator[CouncilHouse]:
        async with open_council(tmp_path, answer, **settings) as app:
            yield app

    return opened
