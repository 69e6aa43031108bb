from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moothall.config import AgentSettings
from moothall.testing.bus import MemoryBus
from support.agents import Agent, serving_agents
from support.callers import Client, Serving, doors_of, serving
from support.deliberation_service import MemoryDesk
from support.rest import Web, serving_http
from support.visits import Visiting, visiting


@pytest.fixture
async def deliberations() -> MemoryDesk:
    return MemoryDesk()


@pytest.fixture
async def app(deliberations: MemoryDesk) -> AsyncIterator[Serving]:
    async with serving(deliberations) as started:
        yield started


@pytest.fixture
def client(app: Serving) -> Client:
    return app.client


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Visiting]:
    async with visiting(tmp_path, MemoryBus(), limits={"visits": 3}) as found:
        yield found


@pytest.fixture
async def web(behind: Visiting) -> AsyncIterator[Web]:
    dependencies = replace(
        doors_of(MemoryDesk()), tool_sessions=behind.visits, approvals=behind.parking
    )
    async with serving_http(dependencies, body_bytes=20_000) as found:
        yield found


@pytest.fixture
def settings() -> AgentSettings:
    return AgentSettings(calls_a_second=1000)


@pytest.fixture
async def agent(
    tmp_path: Path, deliberations: MemoryDesk, settings: AgentSettings
) -> AsyncIterator[Agent]:
    async with serving_agents(tmp_path, deliberations, settings) as found:
        yield found
