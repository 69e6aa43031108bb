"""Behaviour of one store."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from moothall.config import GraphSettings
from moothall.domain.event import EventType
from moothall.errors import ConfigurationError, GraphUnavailable, InvalidRequest
from moothall.graph.embedded import embedded_store
from moothall.graph.neo4j import neo4j_store
from moothall.graph.schema import schema
from moothall.graph.store import CypherGraph, SocketGraphClient, serve_socket
from support.event_log import EventLog, as_recorded
from support.neo4j import Address
from support.servers import free_port, relay_port

WHOLE = as_recorded(EventLog().completed().events)


WRITER = """
import asyncio, sys
from pathlib import Path
from moothall.graph.embedded import embedded_store
from moothall.graph.store import CypherGraph
from support.event_log import EventLog, as_recorded

async def work():
    async with embedded_store(Path(sys.argv[1]), query_seconds=30) as store:
        for record in as_recorded(EventLog().completed().events):
            await CypherGraph(store).project([record])
            print(record.seq, flush=True)

asyncio.run(work())
"""


@pytest.mark.e2e  # a process that is killed
@pytest.mark.parametrize("min_written", [1, 12])
async def test_kill_9_during_writes_loses_nothing_written(tmp_path: Path, min_written: int) -> None:
    path = tmp_path / "context.kgl"
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE, env=env
    )
    assert process.stdout is not None
    written_count = 0
    async with asyncio.timeout(120):
        while written_count < min_written:
            written_count = int(await process.stdout.readline())
        process.kill()
        await process.wait()
    async with embedded_store(path, query_seconds=30) as store:
        graph = CypherGraph(store)
        position = await graph.position()
        assert position >= written_count
        await graph.project([record for record in WHOLE if record.seq > position])
        caught_up = sorted([line async for line in graph.dump()])
        await graph.clear()
        await graph.project(WHOLE)
        assert sorted([line async for line in graph.dump()]) == caught_up


async def test_only_one_process_opens_the_embedded_file(tmp_path: Path) -> None:
    path = tmp_path / "graph" / "context.kgl"
    async with embedded_store(path, query_seconds=30) as store:
        await CypherGraph(store).project(WHOLE)
        with pytest.raises(ConfigurationError, match="open in another process"):
            async with embedded_store(path, query_seconds=30):
                pass
    async with embedded_store(path, query_seconds=30) as store:
        assert await CypherGraph(store).position() == len(WHOLE)


async def test_writers_of_one_process_wait_for_each_other(tmp_path: Path) -> None:
    async with embedded_store(tmp_path / "context.kgl", query_seconds=30) as store:
        graph = CypherGraph(store)
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(WHOLE), 4):
                group.create_task(graph.project(WHOLE[start : start + 4]))
        assert await graph.position() == len(WHOLE)


async def test_a_graph_answers_on_its_socket(tmp_path: Path) -> None:
    """Even if the path of the data directory is too long for a socket."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    async with embedded_store(deep / "context.kgl", query_seconds=30) as store:
        graph = CypherGraph(store)
        event_log = EventLog().completed()
        event_log.of_story(EventType.STORY_COMMENTED, comment="x" * 2000)
        for _ in range(100):
            event_log.of_story(EventType.STORY_COMMENTED, comment="y" * 2000)
        await graph.project(as_recorded(event_log.events))
        async with serve_socket(graph, deep / "graph.sock"):
            client = SocketGraphClient(deep / "graph.sock")
            assert await client.ask("story", tenant="local", story_id="story-1") == await graph.ask(
                "story", tenant="local", story_id="story-1"
            )
            assert await client.counts() == await graph.counts()
            with pytest.raises(InvalidRequest, match="did you mean story"):
                await client.ask("storey", tenant="local")
            with pytest.raises(InvalidRequest, match="the limit is 65536"):
                await client.ask("story", tenant="local", story_id="x" * 70_000)
        assert not (deep / "graph.sock").exists()


async def test_an_unanswered_socket_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GraphUnavailable, match="does not answer"):
        await SocketGraphClient(tmp_path / "graph.sock", connect_seconds=0.2).counts()


async def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(GraphUnavailable, match="did not answer"):
        async with neo4j_store(GraphSettings(url="bolt://127.0.0.1:9")):
            pass


@pytest.mark.e2e
async def test_an_unreachable_server_is_accepted_if_it_need_not_answer() -> None:
    async with neo4j_store(
        GraphSettings(url="bolt://127.0.0.1:9"), must_answer=False, retry_seconds=0.1
    ) as store:
        with pytest.raises(GraphUnavailable, match="did not answer"):
            await store.read("RETURN 1", {})


@pytest.mark.e2e
async def test_a_late_server_gets_its_constraints_before_the_first_write(
    neo4j: Address,
) -> None:
    def settings(url: str) -> GraphSettings:
        return GraphSettings(
            url=url,
            password=SecretStr(neo4j.password),
        )

    port, at = free_port(), urlsplit(neo4j.url)
    async with (
        neo4j_store(settings(neo4j.url_with_user)) as client,
        neo4j_store(
            settings(f"bolt://{neo4j.user}@127.0.0.1:{port}"), must_answer=False, retry_seconds=1
        ) as late_store,
        relay_port((at.hostname or "", at.port or 0), port=port),
    ):
        for kind, kinds in (("CONSTRAINT", "CONSTRAINTS"), ("INDEX", "INDEXES")):
            for row in await client.read(
                f"SHOW {kinds} YIELD name WHERE name STARTS WITH 'moothall_'", {}
            ):
                await client.write([(f"DROP {kind} {row['name']} IF EXISTS", {})])
        await late_store.write([])
        rows = await late_store.read(
            "SHOW INDEXES YIELD name WHERE name STARTS WITH 'moothall_'", {}
        )
        assert len(rows) == len(schema())


async def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is invalid"):
        async with neo4j_store(GraphSettings(url="http://127.0.0.1:9")):
            pass


@pytest.mark.e2e
async def test_concurrent_processes_prepare_an_empty_server(neo4j: Address) -> None:
    settings = GraphSettings(
        url=neo4j.url_with_user,
        password=SecretStr(neo4j.password),
    )
    async with neo4j_store(settings) as first, AsyncExitStack() as stack:
        for kind, kinds in (("CONSTRAINT", "CONSTRAINTS"), ("INDEX", "INDEXES")):
            for row in await first.read(
                f"SHOW {kinds} YIELD name WHERE name STARTS WITH 'moothall_'", {}
            ):
                await first.write([(f"DROP {kind} {row['name']} IF EXISTS", {})])
        stores = await asyncio.gather(
            *(stack.enter_async_context(neo4j_store(settings, retry_seconds=60)) for _ in range(5))
        )
        rows = await stores[-1].read(
            "SHOW INDEXES YIELD name WHERE name STARTS WITH 'moothall_'", {}
        )
        assert len(rows) == len(schema())


@pytest.mark.e2e
async def test_rejected_credentials_name_the_settings(neo4j: Address) -> None:
    with pytest.raises(ConfigurationError, match=r"set graph\.user and graph\.password"):
        async with neo4j_store(GraphSettings(url=neo4j.url_with_user, password=SecretStr("wrong"))):
            pass


@pytest.mark.e2e
async def test_a_missing_database_is_named(neo4j: Address) -> None:
    settings = GraphSettings(
        url=f"{neo4j.url_with_user}/nothing",
        password=SecretStr(neo4j.password),
    )
    with pytest.raises(ConfigurationError, match="no database 'nothing'"):
        async with neo4j_store(settings):
            pass


async def test_deleted_nodes_cause_no_conflict_after_reopening(
    tmp_path: Path,
) -> None:
    """Without an explicit id, the store uses the number of nodes as the next id, so that ids can
    occur twice.
    """
    path = tmp_path / "context.kgl"
    for start in (0, 4, 8):
        async with embedded_store(path, query_seconds=30) as store:
            graph = CypherGraph(store, keep=2)
            for days in range(start, start + 4):
                log = EventLog(f"task-{days}", f"story-{days}", days=days).completed()
                await graph.project(as_recorded(log.events))
            counts = await graph.counts()
    assert (counts["Deliberation"], counts["Story"]) == (2, 12)


async def test_a_store_that_reopens_while_writing_has_the_same_content(tmp_path: Path) -> None:
    dumps = []
    for name, rows in (("once", 200_000), ("often", 1)):
        async with embedded_store(
            tmp_path / name / "context.kgl", query_seconds=30, rows=rows
        ) as store:
            graph = CypherGraph(store)
            for days in range(4):
                log = EventLog(f"task-{days}", f"story-{days}", days=days).completed()
                await graph.project(as_recorded(log.events))
            dumps.append([line async for line in graph.dump()])
    assert dumps[0] == dumps[1]
