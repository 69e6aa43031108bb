"""The serving process: bus, model, fleet, collector and gRPC, or a way in to one that is running already."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from moothall.bus.beside import beside
from moothall.bus.jetstream import open_bus
from moothall.collector import Collector
from moothall.collector.overview import Overview
from moothall.collector.tally import Tally
from moothall.config import Settings, secret_values
from moothall.council.briefing import Briefings
from moothall.council.desk import Defaults, Desk, plan
from moothall.council.roster import Roster
from moothall.domain.identity import LOCAL
from moothall.domain.ids import digest
from moothall.domain.task import DeliberationRequest
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.planning.planner import Planner
from moothall.wiring import lock, memory
from moothall.wiring.log import Tell, found
from moothall.wiring.parts import started
from moothall.wiring.trusted import trusted_repositories
from moothall.wiring.watching import figures, spans

_LOOK_SECONDS, _DRAIN_SECONDS, _OWNER_SECONDS = 0.1, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class House:
    """What a command works with. `attached`: another process does the work. A port is 0 where none is served."""

    desk: Desk
    grpc_port: int
    attached: bool
    metrics_port: int = 0
    http_port: int = 0


def check_early(settings: Settings, request: DeliberationRequest) -> None:
    """Refuse a request that cannot be right before anything is started for it."""
    plan(request, LOCAL, _defaults(settings), datetime.now(UTC))


@asynccontextmanager
async def open_house(settings: Settings, tell: Tell, *, serving: bool = False) -> AsyncIterator[House]:
    """Serve this data directory, or attach to the process that does.

    `serving`: a second server on the same data directory is an error.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(spans(settings, "serve" if serving else "cli"))
        try:
            stack.enter_context(lock.held(settings.data_dir))
        except lock.Taken as error:
            address = await found(settings, tell)
            if serving:
                raise ConfigurationError(
                    f"process {address.pid} serves the data directory {settings.data_dir} already; "
                    "stop it or set MOOTHALL_DATA_DIR to another one"
                ) from error
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch_owner(settings), name="owner")
                yield await _attach(settings, address, stack)
                watching.cancel()
            return
        house, collector = await _build(settings, tell, stack, serving=serving)
        yield house
        if not serving:
            lock.withdraw(settings.data_dir)
            await _drain(collector, tell)


async def _watch_owner(settings: Settings) -> None:
    """Raise `BusUnavailable` when the process that serves is gone: its bus would never answer again."""
    while True:
        await asyncio.sleep(_OWNER_SECONDS)
        try:
            with lock.held(settings.data_dir):
                break
        except lock.Taken:
            continue
    raise BusUnavailable(
        f"the process that served {settings.data_dir} ended; run the command again with the same --task-id, the work goes on"
    )


async def _attach(settings: Settings, address: lock.Address, stack: AsyncExitStack) -> House:
    if address.fingerprint != _fingerprint(settings):
        raise ConfigurationError(
            f"process {address.pid} serves {settings.data_dir} with other settings; stop it, or set MOOTHALL_DATA_DIR to another one"
        )
    bus = await stack.enter_async_context(open_bus(settings.bus, address.bus_url))
    roster = Roster(bus, settings.limits, settings.llm.model)
    await roster.refresh()
    desk = Desk(bus, trusted_repositories(settings), _defaults(settings), councils=roster)
    return House(desk, address.grpc_port, attached=True)


async def _build(settings: Settings, tell: Tell, stack: AsyncExitStack, *, serving: bool) -> tuple[House, Collector]:
    from moothall.fleet.ray_fleet import cluster, hosting
    from moothall.guard.awaiting import of_tasks
    from moothall.services.doors import Doors
    from moothall.services.identity import read_tokens
    from moothall.services.server import grpc_server
    from moothall.wiring.checkup import checkup
    from moothall.wiring.graph import remembering
    from moothall.wiring.host import host_main
    from moothall.wiring.rules import open_rules
    from moothall.wiring.serving import serving_http
    from moothall.wiring.sources import bus_url, model_url
    from moothall.wiring.visiting import execution_service, tool_service, workflow_service
    from moothall.wiring.walls import check_walls

    if settings.ray.address and not (settings.bus.url and settings.llm.base_url):
        raise ConfigurationError(
            "hosts on another machine cannot reach an embedded bus or model: with ray.address set bus.url and llm.base_url too"
        )
    walls = await check_walls(settings, tell)
    tell("starting the bus, Ray and the model")
    ray = await stack.enter_async_context(started(cluster(settings.ray)))
    model = await stack.enter_async_context(started(model_url(settings, tell)))
    url = await stack.enter_async_context(bus_url(settings))
    bus = await stack.enter_async_context(open_bus(settings.bus, url, secrets=secret_values(settings)))
    # A server that ends leaves what the graph lacks to its next start; a single command has none.
    remembered = await stack.enter_async_context(started(remembering(settings, bus, drain=not serving)))
    repositories = trusted_repositories(settings)
    collector = Collector(bus, repositories, settings.limits)
    # Left in reverse: the hosts stop first, then the collector has folded what they said last.
    await (await stack.enter_async_context(started(beside(collector.run(), "collector"))))
    roster = Roster(bus, settings.limits, settings.llm.model)
    await roster.refresh()
    await (await stack.enter_async_context(started(beside(roster.run(), "councils"))))
    main = functools.partial(host_main, settings=settings, bus_url=url, model_url=await model)
    graph = await remembered
    await ray
    hosts = await (await stack.enter_async_context(started(hosting(settings.ray, main))))
    desk = Desk(bus, repositories, _defaults(settings), councils=roster)
    port = figures_port = http_port = 0
    if serving:
        figures_port = await (await stack.enter_async_context(started(figures(settings, bus, collector))))
        planner = Planner(bus, desk, settings.limits)
        await (await stack.enter_async_context(started(beside(planner.run(), "planner"))))
        rules = await (await stack.enter_async_context(started(open_rules(settings, bus))))
        visits = await (await stack.enter_async_context(started(tool_service(settings, bus, rules))))
        workflows = await (await stack.enter_async_context(started(workflow_service(settings, bus, visits))))
        visits.await_calls(of_tasks(desk))
        doors = Doors(
            desk=desk,
            councils=roster,
            plans=planner,
            tallies=Tally(bus, roster, collector.deliberations),
            briefings=Briefings(graph, settings.limits, rules),
            model=settings.llm.model,
            visits=visits,
            executions=execution_service(settings, visits),
            parking=rules.parking,
            workflows=workflows,
            tasks=Overview(bus, collector.states),
            checkup=checkup(settings, bus=bus, model_url=await model, graph=graph, fleet=hosts, walls=walls),
        )
        tokens = read_tokens(settings.grpc, settings.data_dir)
        http_port = await stack.enter_async_context(serving_http(settings, doors, tokens))
        port = (await stack.enter_async_context(grpc_server(settings.grpc, settings.limits, doors, tokens))).port
    memory.settle()
    lock.announce(settings.data_dir, lock.Address(os.getpid(), url, port, _fingerprint(settings)))
    stack.callback(lock.withdraw, settings.data_dir)
    return House(desk, port, attached=False, metrics_port=figures_port, http_port=http_port), collector


async def _drain(collector: Collector, tell: Tell) -> None:
    """Other commands may be attached to this process: let them end."""
    await asyncio.sleep(_DRAIN_SECONDS)
    told = 0
    while collector.under_way:
        if told != collector.under_way:
            told = collector.under_way
            tell(f"{told} other deliberation(s) are under way here; waiting for them")
        await asyncio.sleep(_LOOK_SECONDS)


def _fingerprint(settings: Settings) -> str:
    """Equal for settings that do the same work."""
    return digest(settings.model_dump_json(include={"llm", "bus", "ray", "workspace", "sandbox", "runner", "limits"}))


def _defaults(settings: Settings) -> Defaults:
    return Defaults(settings.limits, settings.repository, settings.seed)
