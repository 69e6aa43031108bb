"""The context graph: Neo4j where one is configured, else the embedded one; and who projects the log into it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from moothall.aio import said
from moothall.bus.raw import StreamState
from moothall.bus.registry import EVENTS
from moothall.config import Settings
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.graph.asking import Elsewhere, answering
from moothall.graph.projector import Projector
from moothall.graph.store import CypherGraph
from moothall.telemetry import get_logger
from moothall.wiring import lock
from moothall.wiring.bus import Bus, bus_url, open_bus

log = get_logger(__name__)

_LOOK_SECONDS, _HELD_SECONDS = 0.1, 30.0


@asynccontextmanager
async def open_graph(settings: Settings) -> AsyncIterator[CypherGraph]:
    """Open the graph. Raises `GraphUnavailable` and `ConfigurationError`: what was configured is never replaced silently."""
    graph = settings.graph
    if graph.url:
        from moothall.graph.neo4j import neo4j_store

        async with neo4j_store(graph) as server:
            yield CypherGraph(server, text_chars=graph.text_chars)
        return
    try:
        from moothall.graph.embedded import embedded_store
    except ImportError as error:
        raise ConfigurationError("no graph: `pip install 'moothall[embedded]'`, or set graph.url to a Neo4j 5 server") from error

    async with embedded_store(settings.data_dir / "graph" / "context.kgl", query_seconds=graph.query_seconds) as file:
        yield CypherGraph(file, text_chars=graph.text_chars, keep=graph.keep)


@asynccontextmanager
async def remembering(settings: Settings, bus: Bus, drain: Callable[[str], None] | None) -> AsyncIterator[CypherGraph]:
    """Open the graph, project the log into it behind the answers, and let other commands on this data directory ask it.

    `drain`: at the end the graph gets `graph.drain_seconds` to catch up, and this hears of it where it takes long; what is left
    then, the next start does.
    """
    async with open_graph(settings) as graph, answering(graph, _socket(settings)), asyncio.TaskGroup() as group:
        projector = Projector(bus, graph, settings.graph)
        running = group.create_task(projector.run((await bus.state(EVENTS.name)).last_seq), name="graph")
        try:
            yield graph
            if drain is not None:
                with said(drain, "the graph to catch up"):
                    await _drain(settings, projector, bus)
        finally:
            running.cancel()


async def _drain(settings: Settings, projector: Projector, bus: Bus) -> None:
    try:
        async with asyncio.timeout(settings.graph.drain_seconds):
            await projector.settled((await bus.state(EVENTS.name)).last_seq)
    except (TimeoutError, BusUnavailable):
        log.warning("the graph is behind; the next start goes on", at=projector.written)


@asynccontextmanager
async def open_answers(settings: Settings) -> AsyncIterator[CypherGraph | Elsewhere]:
    """Yield the graph, caught up; or, where another process has the data directory, what asks that one."""
    async with AsyncExitStack() as stack:
        if await _free(settings, stack):
            bus = await stack.enter_async_context(_own_bus(settings))
            graph = await stack.enter_async_context(open_graph(settings))
            await Projector(bus, graph, settings.graph).catch_up((await bus.state(EVENTS.name)).last_seq)
            yield graph
        elif settings.graph.url:
            yield await stack.enter_async_context(open_graph(settings))
        else:
            yield Elsewhere(_socket(settings))


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to. `before` and `after` are the graph's lines, in order."""

    events: int
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]
    counts: dict[str, int]


async def rebuild(settings: Settings, on_batch: Callable[[int, int], None], *, lossy: bool = False) -> Rebuilt:
    """Empty the graph and replay the log. `on_batch` hears (seq, the log's end).

    Raises `ConfigurationError` where another process has the data directory, or where the log's beginning was pruned and
    not `lossy`: what only the graph remembers would be gone.
    """
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(lock.hold(settings.data_dir))
        except lock.Taken as error:
            raise ConfigurationError(
                f"another process writes the graph of {settings.data_dir}; stop it and run this again"
            ) from error
        bus = await stack.enter_async_context(_own_bus(settings))
        state: StreamState = await bus.state(EVENTS.name)
        if state.first_seq > 1 and not lossy:
            raise ConfigurationError(
                f"the log begins at seq {state.first_seq}: what was pruned is in the graph alone and would be gone; "
                "--lossy rebuilds it nevertheless"
            )
        graph = await stack.enter_async_context(open_graph(settings))
        projector = Projector(bus, graph, settings.graph)
        await projector.catch_up(state.last_seq)
        before = tuple([line async for line in graph.dump()])
        await graph.clear()
        events = await projector.catch_up(state.last_seq, lambda seq: on_batch(seq, state.last_seq))
        after = tuple([line async for line in graph.dump()])
        return Rebuilt(events, before, after, await graph.counts())


async def _free(settings: Settings, stack: AsyncExitStack) -> bool:
    """Hold the data directory; False where another process serves it. One that is starting or ending is waited for."""
    try:
        async with asyncio.timeout(_HELD_SECONDS):
            while True:
                try:
                    stack.enter_context(lock.hold(settings.data_dir))
                except lock.Taken:
                    if settings.graph.url is not None or await asyncio.to_thread(os.path.exists, _socket(settings)):
                        return False
                    await asyncio.sleep(_LOOK_SECONDS)
                else:
                    return True
    except TimeoutError as error:
        raise ConfigurationError(f"another process holds {settings.data_dir} but does not answer for the graph") from error


@asynccontextmanager
async def _own_bus(settings: Settings) -> AsyncIterator[Bus]:
    async with bus_url(settings.bus, settings.data_dir) as url, open_bus(settings.bus, url) as bus:
        yield bus


def _socket(settings: Settings) -> Path:
    return settings.data_dir / "graph.sock"
