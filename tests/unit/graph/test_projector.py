"""The projector continues from the graph's position, retries failures and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moothall.domain.event import Recorded
from moothall.errors import GraphUnavailable
from moothall.graph.embedded import embedded_store
from moothall.graph.store import CypherGraph, Projector
from moothall.testing.bus import MemoryBus
from support.event_log import EventLog

BATCH = 7


class Flaky(CypherGraph):
    """A graph that is unavailable for the first calls."""

    def __init__(self, inner: CypherGraph, failures: int) -> None:
        super().__init__(inner._store)
        self.failures = failures
        self.batches: list[int] = []

    def _fail_if_planned(self) -> None:
        if self.failures:
            self.failures -= 1
            raise GraphUnavailable("away")

    async def project(self, records: Sequence[Recorded]) -> None:
        self._fail_if_planned()
        self.batches.append(len(records))
        await super().project(records)

    async def position(self) -> int:
        self._fail_if_planned()
        return await super().position()


@asynccontextmanager
async def running(projector: Projector, last_seq: int) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(projector.run(last_seq))
        yield
        task.cancel()


@pytest.fixture
async def graph(tmp_path: Path) -> AsyncIterator[CypherGraph]:
    async with embedded_store(tmp_path / "context.kgl", query_seconds=30) as store:
        yield CypherGraph(store)


async def publish_events(bus: MemoryBus, event_log: EventLog) -> int:
    last = 0
    for event in event_log.events:
        last = await bus.publish(event)
    return last


async def dump_graph(graph: CypherGraph) -> list[tuple[str, ...]]:
    return sorted([line async for line in graph.dump()])


async def test_the_projector_follows_the_log_from_the_position_of_the_graph(
    graph: CypherGraph,
) -> None:
    bus = MemoryBus()
    projector = Projector(bus, graph, batch_size=BATCH, pace_seconds=0)
    async with asyncio.timeout(60), running(projector, 0):
        await projector.wait_written(await publish_events(bus, EventLog("task-a").completed()))
    position = await graph.position()
    assert position == projector.written > 20
    last = await publish_events(bus, EventLog("task-b", "story-2", days=1).completed())
    flaky = Flaky(graph, 0)
    second_projector = Projector(bus, flaky, batch_size=BATCH, pace_seconds=0)
    async with asyncio.timeout(60), running(second_projector, last):
        await second_projector.wait_written(last)
    assert sum(flaky.batches) == last - position, "written events are not read again"
    assert max(flaky.batches) <= BATCH
    one_by_one = await dump_graph(graph)
    await graph.clear()
    assert await Projector(bus, graph, batch_size=BATCH, pace_seconds=0).catch_up(last) == last
    assert await dump_graph(graph) == one_by_one


async def test_an_unavailable_graph_falls_behind_and_loses_nothing(graph: CypherGraph) -> None:
    bus = MemoryBus()
    last = await publish_events(bus, EventLog().completed())
    flaky = Flaky(graph, 2)
    projector = Projector(bus, flaky, batch_size=BATCH, pace_seconds=0, pause_seconds=0.01)
    async with asyncio.timeout(60), running(projector, last):
        await projector.wait_written(last)
    assert flaky.failures == 0
    (row,) = await graph.ask("deliberation", tenant="local", task_id="task-a")
    assert row["deliberation"]["final_state"] == "committed"


async def test_the_graph_of_another_log_is_projected_again(graph: CypherGraph) -> None:
    bus = MemoryBus()
    await graph.project([Recorded(1000, EventLog("old").deliberated().events[0])])
    last = await publish_events(bus, EventLog().completed())
    assert await Projector(bus, graph, batch_size=BATCH, pace_seconds=0).catch_up(last) == last
    assert await graph.ask("deliberation", tenant="local", task_id="task-a")


async def test_a_process_without_the_lease_writes_nothing(graph: CypherGraph) -> None:
    bus, is_writer = MemoryBus(), True
    last = await publish_events(bus, EventLog("task-a").completed())
    projector = Projector(bus, graph, batch_size=BATCH, pace_seconds=0, is_writer=lambda: is_writer)
    is_writer = False
    with pytest.raises(GraphUnavailable, match="another process writes the graph now"):
        await projector.catch_up(last)
    assert await graph.position() == 0
    is_writer = True
    await projector.catch_up(last)
    assert await graph.position() == last


class Small(Flaky):
    """A graph that accepts at most three events at a time."""

    async def project(self, records: Sequence[Recorded]) -> None:
        if len(records) > 3:
            raise GraphUnavailable("the transaction took too long")
        await super().project(records)


async def test_a_batch_that_is_too_large_is_written_in_parts(
    graph: CypherGraph,
) -> None:
    bus, small = MemoryBus(), Small(graph, 0)
    last = await publish_events(bus, EventLog("task-a").completed())
    projector = Projector(bus, small, batch_size=BATCH, pace_seconds=0, pause_seconds=0)
    async with asyncio.timeout(60), running(projector, last):
        await projector.wait_written(last)
    assert max(small.batches) <= 3
    assert await graph.position() == last
