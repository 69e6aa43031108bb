from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.tool_gateway import App, open_app


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with open_app(tmp_path) as opened:
        yield opened
