from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moothall.testing.callers import Client, Serving, serving
from moothall.testing.desk import MemoryDesk


@pytest.fixture
async def desk() -> MemoryDesk:
    return MemoryDesk()


@pytest.fixture
async def house(desk: MemoryDesk) -> AsyncIterator[Serving]:
    async with serving(desk) as started:
        yield started


@pytest.fixture
def client(house: Serving) -> Client:
    return house.client
