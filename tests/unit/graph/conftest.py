from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from moothall.config import GraphSettings
from moothall.graph.embedded import embedded_store
from moothall.graph.neo4j import neo4j_store
from moothall.graph.store import CypherGraph, Store
from support.neo4j import Address, Missing, some_server


@pytest.fixture(scope="session")
def neo4j(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One real server for the whole session."""
    try:
        with some_server(tmp_path_factory.mktemp("neo4j") / "home") as address:
            yield address
    except Missing as missing:
        pytest.skip(str(missing))


def settings_for(address: Address) -> GraphSettings:
    # A fresh server plans each query for the first time on a busy machine.
    return GraphSettings(
        url=address.url_with_user,
        password=SecretStr(address.password),
    )


@pytest_asyncio.fixture(params=["embedded", pytest.param("neo4j", marks=pytest.mark.e2e)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Both stores, empty."""
    if request.param == "embedded":
        async with embedded_store(tmp_path / "graph" / "context.kgl", query_seconds=30) as embedded:
            yield embedded
    else:
        async with neo4j_store(
            settings_for(request.getfixturevalue("neo4j")), retry_seconds=60
        ) as server:
            await server.empty()
            yield server


@pytest_asyncio.fixture
async def graph(store: Store) -> CypherGraph:
    return CypherGraph(store)
