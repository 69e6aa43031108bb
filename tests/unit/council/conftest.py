from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.evidence import CheckRun
from moothall.testing.council import CouncilHouse, open_council
from moothall.testing.model import Answer

Open = Callable[..., AbstractAsyncContextManager[CouncilHouse]]


@pytest.fixture(scope="session")
def runs() -> dict[tuple[str, str, tuple[str, ...]], CheckRun]:
    """What pytest said of a tree, from one test to the next: the same tree says the same."""
    return {}


@pytest.fixture
def council(tmp_path: Path, runs: dict[tuple[str, str, tuple[str, ...]], CheckRun]) -> Open:
    @asynccontextmanager
    async def opened(answer: Answer, **settings: Any) -> AsyncIterator[CouncilHouse]:
        async with open_council(tmp_path, answer, runs, **settings) as house:
            yield house

    return opened
