"""The graph of a real log on a real bus: queried without a server, and rebuilt unless that would
lose data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from moothall.app import preflight
from moothall.app.bus import open_log
from moothall.app.data_dir import prune as prune_shared
from moothall.app.graph import open_answers, open_graph, rebuild
from moothall.config import GraphSettings, Settings
from moothall.errors import ConfigurationError
from moothall.events.nats.maintenance import prune
from moothall.settings import load_settings
from support.event_log import EventLog, delivered_sha
from support.neo4j import Address

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


@pytest.fixture(params=["embedded", pytest.param("neo4j", marks=pytest.mark.e2e)])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    named: dict[str, Any] = {}
    if request.param == "neo4j":
        server: Address = request.getfixturevalue("neo4j")
        named = {
            "url": server.url_with_user,
            "password": SecretStr(server.password),
        }
    settings = load_settings(data_dir=tmp_path / "data", graph=GraphSettings(**named))
    async with open_graph(settings.graph, settings.data_dir) as graph:
        await graph.clear()
    async with open_log(settings, lambda _: None) as bus:
        for event in EventLog().completed().events:
            await bus.publish(event)
    return settings


async def test_a_rebuild_gives_the_same_graph_and_reports_progress(settings: Settings) -> None:
    async with open_answers(settings) as answers:
        (row,) = await answers.ask("provenance", tenant="local", commit_sha=delivered_sha())
        assert row["decisions"]
        counts = await answers.counts()
    progress: list[tuple[int, int]] = []
    result = await rebuild(settings, lambda seq, last: progress.append((seq, last)), batch_size=7)
    number = len(EventLog().completed().events)
    assert result.events == number
    assert result.before == result.after
    assert len(result.after) == sum(counts.values())
    assert result.counts == counts
    assert progress[-1] == (number, number)
    assert len(progress) == -(-number // 7)


async def test_a_lossy_rebuild_is_refused(settings: Settings) -> None:
    async with open_answers(settings) as answers:
        counts_before = await answers.counts()
    async with open_log(settings, lambda _: None) as bus:
        await prune(bus, 3)
    with pytest.raises(ConfigurationError, match="--lossy"):
        await rebuild(settings, lambda _seq, _last: None)
    async with open_answers(settings) as answers:
        assert await answers.counts() == counts_before
    result = await rebuild(settings, lambda _seq, _last: None, lossy=True)
    assert result.events == 3
    assert len(result.after) < len(result.before)


async def test_the_graph_reads_events_before_they_are_pruned(settings: Settings) -> None:
    pruned = await prune_shared(settings, 3, lambda _: None)
    assert pruned.events > 20
    async with open_answers(settings) as answers:
        assert await answers.ask("provenance", tenant="local", commit_sha=delivered_sha())


async def test_a_rebuild_needs_exclusive_access(settings: Settings) -> None:
    with (
        preflight.hold(settings.data_dir),
        pytest.raises(ConfigurationError, match="another process writes the graph"),
    ):
        await rebuild(settings, lambda _seq, _last: None)
