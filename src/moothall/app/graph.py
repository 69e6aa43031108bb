"""The context graph: Neo4j if configured, else the embedded one; and the projection of the log into
it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.app import preflight
from moothall.app.bus import Bus, bus_url, lease_of, open_bus
from moothall.concurrency import report_if_slow, run_in_background
from moothall.config import GraphSettings, Settings
from moothall.errors import BusUnavailable, ConfigurationError, GraphUnavailable
from moothall.events.lease import Lease
from moothall.events.raw_store import StreamState
from moothall.events.registry import EVENTS
from moothall.graph.store import (
    BATCH_EVENTS,
    QUERY_SECONDS,
    BusGraphClient,
    CypherGraph,
    Projector,
    SocketGraphClient,
    serve_bus,
    serve_socket,
)
from moothall.telemetry import get_logger

log = get_logger(__name__)
_DRAIN_SECONDS = 10.0
"""The time in which the graph may catch up when a command ends."""

_POLL_SECONDS, _HOLD_SECONDS = 0.1, 30.0
_NO_GRAPH = (
    "no context graph: pip install 'moothall[local]', or pip install 'moothall[neo4j]' and set "
    "graph.url to a Neo4j 5 server"
)


@asynccontextmanager
async def open_graph(
    graph: GraphSettings, data_dir: Path, *, at_once: bool = True
) -> AsyncIterator[CypherGraph]:
    """Open the graph. Raises `GraphUnavailable` and `ConfigurationError`; a configured graph is
    never replaced silently. With `at_once` False, an unreachable server is waited for in the
    background.
    """
    if graph.url:
        try:
            from moothall.graph.neo4j import neo4j_store
        except ImportError as error:
            raise ConfigurationError(
                "graph.url is set, but Neo4j's driver is not installed: pip install "
                "'moothall[neo4j]'"
            ) from error

        async with neo4j_store(graph, must_answer=at_once) as server:
            yield CypherGraph(server)
        return
    try:
        from moothall.graph.embedded import embedded_store
    except ImportError as error:
        raise ConfigurationError(_NO_GRAPH) from error

    async with embedded_store(
        data_dir / "graph" / "context.kgl", query_seconds=QUERY_SECONDS
    ) as file:
        yield CypherGraph(file, keep=graph.keep)


@asynccontextmanager
async def open_reader(settings: Settings, bus: Bus) -> AsyncIterator[Answers]:
    """Yield the graph for a process that does not write it: the server's, or the embedded graph of
    another process.
    """
    if settings.graph.url is None:
        yield BusGraphClient(bus, QUERY_SECONDS)
        return
    async with open_graph(settings.graph, settings.data_dir, at_once=False) as graph:
        yield graph


def graph_of(
    settings: Settings,
    bus: Bus,
    report_progress: Callable[[str], None],
    serves: frozenset[str] | None,
) -> AbstractAsyncContextManager[Answers]:
    """Return the graph for a process with these roles; None means a command. A command waits at its
    end for the graph to catch up; a server leaves that to the next start.
    """
    if serves is not None and "graph" not in serves:
        return open_reader(settings, bus)
    if settings.graph.url is None and importlib.util.find_spec("kglite") is None:
        report_progress(f"{_NO_GRAPH}; councils work without it")
        return nullcontext(NoGraph())
    if settings.bus.url is not None and (serves is not None or settings.graph.url is not None):
        return open_in_turns(settings, bus, at_once=serves is None)
    return open_writer(settings, bus, report_progress if serves is None else None)


class _WriterOrReader:
    """The embedded graph of this process while it is the writer, else that of the writing
    process.
    """

    def __init__(self, writer: CypherGraph, reader: BusGraphClient, lease: Lease) -> None:
        self._writer, self._reader, self._lease = writer, reader, lease

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        return await (self._writer if self._lease.held else self._reader).ask(
            question, **parameters
        )

    async def position(self) -> int:
        return await (self._writer if self._lease.held else self._reader).position()


class NoGraph:
    """The graph of an installation without the package of the embedded one."""

    async def ask(self, _question: str, **_parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Raise `GraphUnavailable`."""
        raise GraphUnavailable(_NO_GRAPH)

    async def position(self) -> int:
        """Raise `GraphUnavailable`."""
        raise GraphUnavailable(_NO_GRAPH)


Answers = CypherGraph | BusGraphClient | _WriterOrReader | NoGraph
"""Answers queries on the graph, and returns the seq up to which the log is projected."""


@asynccontextmanager
async def open_in_turns(settings: Settings, bus: Bus, *, at_once: bool) -> AsyncIterator[Answers]:
    """Open the graph, and project the log into it while no other process on this bus does. An
    embedded graph that falls behind reads on in the log.
    """
    lease = lease_of(bus, "graph")
    async with (
        open_graph(settings.graph, settings.data_dir, at_once=at_once) as graph,
        AsyncExitStack() as stack,
    ):

        async def write() -> None:
            projector = Projector(
                bus,
                graph,
                pace_seconds=settings.graph.pace_seconds,
                is_writer=lambda: lease.held,
            )
            last_seq = (await bus.state(EVENTS.name)).last_seq
            async with run_in_background(serve_bus(bus, graph), "graph-answers"):
                await projector.run(last_seq)

        answers: Answers = graph
        if settings.graph.url is None:
            answers = _WriterOrReader(graph, BusGraphClient(bus, QUERY_SECONDS), lease)
            await stack.enter_async_context(serve_socket(graph, _socket(settings.data_dir)))
        async with run_in_background(lease.lead(write), "graph"):
            yield answers


@asynccontextmanager
async def open_writer(
    settings: Settings, bus: Bus, drain: Callable[[str], None] | None
) -> AsyncIterator[CypherGraph]:
    """Open the graph, project the log into it in the background, and let other commands on this
    data directory query it.

    `drain`: at the end the graph gets 10 seconds to catch up, and a long wait is
    reported to this function. The next start projects the rest.
    """
    async with (
        open_graph(settings.graph, settings.data_dir) as graph,
        serve_socket(graph, _socket(settings.data_dir)),
        asyncio.TaskGroup() as group,
    ):
        projector = Projector(bus, graph, pace_seconds=settings.graph.pace_seconds)
        projecting = group.create_task(
            projector.run((await bus.state(EVENTS.name)).last_seq), name="graph"
        )
        try:
            yield graph
            if drain is not None:
                with report_if_slow(drain, "the graph to catch up"):
                    await _drain(_DRAIN_SECONDS, projector, bus)
        finally:
            projecting.cancel()


async def _drain(seconds: float, projector: Projector, bus: Bus) -> None:
    try:
        async with asyncio.timeout(seconds):
            await projector.wait_written((await bus.state(EVENTS.name)).last_seq)
    except (TimeoutError, BusUnavailable):
        log.warning("the graph is behind; the next start continues", at=projector.written)


@asynccontextmanager
async def open_answers(settings: Settings) -> AsyncIterator[CypherGraph | SocketGraphClient]:
    """Yield the graph, caught up. If another process holds the data directory, yield a client of
    that process.
    """
    if settings.graph.url is None and importlib.util.find_spec("kglite") is None:
        raise ConfigurationError(_NO_GRAPH)
    async with AsyncExitStack() as stack:
        if await _hold_if_free(settings, stack):
            bus = await stack.enter_async_context(_own_bus(settings))
            graph = await stack.enter_async_context(open_graph(settings.graph, settings.data_dir))
            if await _may_write(settings, bus, stack):
                await Projector(bus, graph).catch_up((await bus.state(EVENTS.name)).last_seq)
            yield graph
        elif settings.graph.url:
            yield await stack.enter_async_context(open_graph(settings.graph, settings.data_dir))
        else:
            yield SocketGraphClient(_socket(settings.data_dir))


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result of a rebuild. `before` and `after` are the graph's lines, in order."""

    events: int
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]
    counts: dict[str, int]


async def rebuild(
    settings: Settings,
    on_batch: Callable[[int, int], None],
    *,
    lossy: bool = False,
    batch_size: int = BATCH_EVENTS,
) -> RebuildReport:
    """Empty the graph and replay the log. `on_batch` receives the seq and the end of the log.

    Raises `ConfigurationError` if another process holds the data directory, or if the beginning of
    the log was pruned and `lossy` is not set, because only the graph has that part.
    """
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(preflight.hold(settings.data_dir))
        except preflight.DirectoryTaken as error:
            raise ConfigurationError(
                f"another process writes the graph of {settings.data_dir}; stop it and run this "
                "again"
            ) from error
        bus = await stack.enter_async_context(_own_bus(settings))
        state: StreamState = await bus.state(EVENTS.name)
        if state.first_seq > 1 and not lossy:
            raise ConfigurationError(
                f"the log begins at seq {state.first_seq}: pruned events exist only in the graph "
                "and would be lost; --lossy rebuilds it nevertheless"
            )
        if not await _may_write(settings, bus, stack):
            raise ConfigurationError(
                f"another process on the bus writes the graph {settings.graph.url}; stop it and "
                "run this again"
            )
        graph = await stack.enter_async_context(open_graph(settings.graph, settings.data_dir))
        projector = Projector(bus, graph, batch_size=batch_size)
        await projector.catch_up(state.last_seq)
        before = tuple([line async for line in graph.dump()])
        await graph.clear()
        events = await projector.catch_up(state.last_seq, lambda seq: on_batch(seq, state.last_seq))
        after = tuple([line async for line in graph.dump()])
        return RebuildReport(events, before, after, await graph.counts())


async def _hold_if_free(settings: Settings, stack: AsyncExitStack) -> bool:
    """Hold the data directory and return True; return False if another process serves it. Waits for
    a process that is starting or ending.
    """
    try:
        async with asyncio.timeout(_HOLD_SECONDS):
            while True:
                try:
                    stack.enter_context(preflight.hold(settings.data_dir))
                except preflight.DirectoryTaken:
                    if settings.graph.url is not None or await asyncio.to_thread(
                        os.path.exists, _socket(settings.data_dir)
                    ):
                        return False
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return True
    except TimeoutError as error:
        raise ConfigurationError(
            f"another process holds {settings.data_dir} but does not answer for the graph"
        ) from error


async def _may_write(settings: Settings, bus: Bus, stack: AsyncExitStack) -> bool:
    """Return whether this command may write the graph: its own file, or that of a server which no
    other process writes.
    """
    if settings.bus.url is None or settings.graph.url is None:
        return True
    return await stack.enter_async_context(lease_of(bus, "graph").try_acquire())


@asynccontextmanager
async def _own_bus(settings: Settings) -> AsyncIterator[Bus]:
    async with bus_url(settings.bus, settings.data_dir) as url, open_bus(settings.bus, url) as bus:
        yield bus


def _socket(data_dir: Path) -> Path:
    return data_dir / "graph.sock"
