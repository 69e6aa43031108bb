from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moothall.config import AgentSettings
from moothall.testing.bus import MemoryBus
from support.agents import Agent, serving_agents
from support.callers import Client, Serving, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, serving_http
from support.session_manager import SessionsFixture, open_session_manager


@pytest.fixture
async def deliberations() -> MemoryDeliberations:
    return MemoryDeliberations()


@pytest.fixture
async def app(deliberations: MemoryDeliberations) -> AsyncIterator[Serving]:
    async with serving(deliberations) as started:
        yield started


@pytest.fixture
def client(app: Serving) -> Client:
    return app.client


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SessionsFixture]:
    async with open_session_manager(tmp_path, MemoryBus(), max_open=3) as session_manager:
        yield session_manager


@pytest.fixture
async def web(backend: SessionsFixture) -> AsyncIterator[Web]:
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()),
        sessions=backend.session_manager,
        approvals=backend.parking,
    )
    async with serving_http(dependencies, body_bytes=20_000) as server:
        yield server


@pytest.fixture
def settings() -> AgentSettings:
    return AgentSettings(calls_a_second=1000)


@pytest.fixture
async def agent(
    tmp_path: Path, deliberations: MemoryDeliberations, settings: AgentSettings
) -> AsyncIterator[Agent]:
    async with serving_agents(tmp_path, deliberations, settings) as server:
        yield server
