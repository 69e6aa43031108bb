"""The serving process: bus, model, fleet, collector and gRPC, or a way in to one that is running already."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from moothall.aio import beside, enter_beside, said, start_beside
from moothall.collector import Collector
from moothall.collector.onlooker import Onlooker
from moothall.config import Llm, Ray, Settings, secret_values
from moothall.council.front.desk import Desk
from moothall.council.front.roster import Roster
from moothall.domain.ids import digest
from moothall.domain.secrets import scrub
from moothall.errors import BusUnavailable, ConfigurationError, ModelUnavailable
from moothall.fleet.in_process import Alive
from moothall.fleet.owner import end_left
from moothall.sandbox.probe import Layer
from moothall.wiring import lock
from moothall.wiring.bus import Bus, Tell, bus_url, hold_or_find, hosts_on, open_bus
from moothall.wiring.early import defaults
from moothall.wiring.lending import lending
from moothall.wiring.roles import ALL, Deciding, embedded, instance, roles_of
from moothall.wiring.telemetry import settle, spans
from moothall.wiring.trusted import trusted_repositories

_LOOK_SECONDS, _DRAIN_SECONDS, _OWNER_SECONDS, _ASK_SECONDS = 0.1, 0.5, 1.0, 0.3


@dataclass(frozen=True, slots=True)
class House:
    """What a command works with. A port is 0 where none is served."""

    desk: Desk
    bus: Bus
    grpc_port: int
    metrics_port: int = 0
    http_port: int = 0
    link: str = ""


@asynccontextmanager
async def open_house(settings: Settings, tell: Tell, *, serving: bool = False, asked: bool = False) -> AsyncIterator[House]:
    """Serve this data directory, or attach to the process that does.

    `serving`: a second server with embedded parts on the same data directory is an error. `asked`: the model server has answered just now.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(spans(settings, "serve" if serving else "cli"))
        roles = roles_of(settings) if serving else ALL
        parts = embedded(settings, roles)
        own, address = not serving or bool(parts), None
        if own:
            address = await hold_or_find(settings.data_dir, tell, stack)
        elif roles == ALL:  # others may work here beside it
            with suppress(lock.Taken):
                stack.enter_context(lock.hold(settings.data_dir))
                own = True
        if address is not None and serving:
            raise ConfigurationError(
                f"process {address.pid} serves the data directory {settings.data_dir} already, and an embedded {' or '.join(parts)} is one "
                "process's; stop it or set MOOTHALL_DATA_DIR to another one"
            )
        if address is not None:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch_owner(settings), name="owner")
                yield await _attach(settings, address, stack)
                watching.cancel()
            return
        house, collector = await _build(settings, tell, stack, roles if serving else None, own=own, asked=asked)
        try:
            yield house
        except (OSError, SystemExit):  # nobody reads this command any more: the others have readers of their own
            await _leave(settings, collector, tell, serving=serving)
            raise
        await _leave(settings, collector, tell, serving=serving)


async def _watch_owner(settings: Settings) -> None:
    """Raise `BusUnavailable` when the process that serves is gone: its bus would never answer again."""
    while True:
        await asyncio.sleep(_OWNER_SECONDS)
        try:
            with lock.hold(settings.data_dir):
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
    roster = Roster(bus, settings.limits, settings.choice)
    await roster.refresh()
    desk = Desk(bus, trusted_repositories(settings), defaults(settings), councils=roster)
    return House(desk, bus, address.grpc_port)


async def _build(
    settings: Settings, tell: Tell, stack: AsyncExitStack, serves: frozenset[str] | None, *, own: bool, asked: bool
) -> tuple[House, Collector | Onlooker]:
    """Open what the roles need that are served; None: what a command needs. `own`: others on this data directory are to find this process."""
    serving, roles = serves is not None, ALL if serves is None else serves
    await _check_first(settings, tell, serving=serving)
    walls = await _check_parts(settings, tell, roles, serving=serving, asked=asked)
    # Only now: half a second of imports that a wrong address need not wait for.
    from moothall.council.prompting.briefing import Briefings, estimate
    from moothall.model.counting import counting
    from moothall.wiring.graph import graph_of
    from moothall.wiring.host import open_fleet

    hosts = "hosts" in roles
    on_ray = hosts and _on_ray(settings.ray, serving=serving)
    starting = [name for name, wanted in (("Ray", on_ray), ("the model", hosts and settings.llm.base_url is None)) if wanted]
    if starting:
        tell(f"starting {' and '.join(('the bus', *starting))}".replace(" and Ray and", ", Ray and"))
    ending = stack.enter_context(ExitStack())
    named = instance(settings, ending) if serving else ""
    fleet = await stack.enter_async_context(start_beside(open_fleet(settings, on_ray=on_ray, instance=named)))
    model = await stack.enter_async_context(start_beside(model_url(settings.llm, settings.data_dir, tell, needed=hosts)))
    with said(tell, "the bus"):
        url = await stack.enter_async_context(bus_url(settings.bus, settings.data_dir))
        bus = await stack.enter_async_context(
            open_bus(settings.bus, url, secrets=secret_values(settings), alone=not settings.bus.url)
        )
    remembered = await stack.enter_async_context(start_beside(graph_of(settings, bus, tell, serves)))
    repositories = await stack.enter_async_context(lending(settings, bus, trusted_repositories(settings)))
    deciding = Deciding(
        settings,
        bus,
        repositories,
        decides="collector" in roles,
        watches=serving and bool(roles & {"api", "page"}),
    )
    # Left in reverse: the hosts stop first, then the collector has folded what they said last.
    await enter_beside(stack, beside(deciding.run(), "collector"))
    roster = Roster(bus, settings.limits, settings.choice)
    await roster.refresh()
    await enter_beside(stack, beside(roster.run(), "councils"))
    with said(tell, "the model"):
        answering = await model
    with said(tell, "the graph"):
        graph = await remembered
    with said(tell, "Ray" if on_ray else "the hosts"):
        hosting = await fleet
        alive: Alive = functools.partial(_answering, bus)
        if hosts:
            alive = await enter_beside(stack, hosting(bus, url, answering))
    count = await stack.enter_async_context(counting(settings.llm, answering)) if answering else estimate
    briefed = functools.partial(
        Briefings, graph.ask, settings.limits, count=count, clean=functools.partial(scrub, known=secret_values(settings))
    )
    desk = Desk(bus, repositories, defaults(settings), councils=roster, tell=briefed().tell)
    house = House(desk, bus, 0)
    if serving:
        from moothall.wiring.serving import Behind, open_doors

        behind = Behind(bus, desk, roster, deciding.sees, graph, alive, walls, answering, briefed, roles, named)
        ports = await stack.enter_async_context(open_doors(settings, behind, tell))
        house = House(desk, bus, ports.grpc, ports.metrics, ports.http, ports.link)
    settle()
    if own:
        lock.announce(
            settings.data_dir, lock.Address(os.getpid(), url, house.grpc_port, _fingerprint(settings), page_at(house.link))
        )
        stack.callback(lock.withdraw, settings.data_dir)
    stack.callback(lambda: ending.enter_context(said(tell, "what was started to end")))
    return house, deciding.sees


async def _check_first(settings: Settings, tell: Tell, *, serving: bool) -> None:
    """Refuse what cannot be, and end what was left. Raises `ConfigurationError`."""
    if settings.ray.address and not (settings.bus.url and settings.llm.base_url):
        raise ConfigurationError(
            "hosts on another machine cannot reach an embedded bus or model: with ray.address set bus.url and llm.base_url too"
        )
    if left := await asyncio.to_thread(end_left, settings.data_dir / "hosts"):
        tell(f"{left} host(s) of a house that was killed were still alive; they are ended")
    if serving:
        check_ports(settings)


async def _answering(bus: Bus) -> tuple[int, int]:
    """Return how many hosts of other processes answer."""
    there = len(await hosts_on(bus))
    return there, there


async def _check_parts(settings: Settings, tell: Tell, roles: frozenset[str], *, serving: bool, asked: bool) -> tuple[Layer, ...]:
    """Try the walls and ask a configured model server, side by side: nothing slow begins before both are well. A server of ours
    outlives a model server that is away: it says so, also at /health, and goes on.
    """
    from moothall.model.reaching import reach_all
    from moothall.sandbox.probe import check_walls

    async def ask() -> None:
        try:
            await reach_all(settings.choice, tell)
        except ModelUnavailable as error:
            if not serving:
                raise
            tell(f"no council can work until the model server answers: {error}")

    asking = None
    async with asyncio.TaskGroup() as group:
        if not asked and "hosts" in roles:
            asking = group.create_task(ask(), name="model")
            await asyncio.wait({asking}, timeout=_ASK_SECONDS)  # what is plainly wrong is said before anything else
        walls: tuple[Layer, ...] = ()
        if settings.workspace.kind == "local" and roles & {"hosts", "tools"}:
            with said(tell, "the sandbox to be tried"):
                walls = await check_walls(settings.sandbox, tell)
        if asking is not None:
            with said(tell, "the model server to answer"):
                await asking
    return walls


def page_at(link: str) -> str:
    """Return where the page is that a link signs in to."""
    return link.partition("/sign-in")[0]


def _on_ray(ray: Ray, *, serving: bool) -> bool:
    if ray.mode == "auto":
        return serving or ray.address is not None
    return ray.mode == "ray"


async def _leave(settings: Settings, collector: Collector | Onlooker, tell: Tell, *, serving: bool) -> None:
    """Other commands may be attached to this process: let them end, unless it is a server that was told to stop, or others on its bus take their
    work up.
    """
    if serving or settings.bus.url is not None:
        return
    lock.withdraw(settings.data_dir)
    await asyncio.sleep(_DRAIN_SECONDS)
    told = 0
    while collector.under_way:
        if told != collector.under_way:
            told = collector.under_way
            with suppress(OSError, SystemExit):  # whoever read this is gone
                tell(f"{told} other deliberation(s) are under way here; waiting for them")
        await asyncio.sleep(_LOOK_SECONDS)


def _fingerprint(settings: Settings) -> str:
    """Equal for settings that do the same work."""
    parts = {"llm", "models", "bus", "ray", "workspace", "sandbox", "runner", "limits"}
    idle = {"wait_seconds", "seats_in_turn"}
    return digest(settings.model_dump_json(include=parts, exclude={"ray": {"mode"}, "llm": idle, "models": {"__all__": idle}}))


@asynccontextmanager
async def model_url(llm: Llm, data_dir: Path, tell: Tell, *, needed: bool = True) -> AsyncIterator[str]:
    """Yield the model server's root URL once it can be called; empty where none is named and this process needs none."""
    if llm.base_url or not needed:
        yield llm.base_url or ""
        return
    from moothall.model.local import local_model_server

    async with local_model_server(llm, data_dir, tell) as url:
        yield url


def check_ports(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first address that cannot be listened on. Default ports of HTTP and figures may be taken."""
    for setting, host, port in _addresses(settings):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that ended just now is no hindrance
                trial.bind(address)
                trial.listen(1)
        except OSError as error:
            raise ConfigurationError(
                f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}; choose another {setting}, or 0 for any free one"
            ) from error


def _addresses(settings: Settings) -> Iterator[tuple[str, str, int]]:
    grpc, web, metrics = settings.grpc, settings.web, settings.metrics
    yield "port (grpc.port, --port)", grpc.host, grpc.port
    for port in grpc.more_ports:
        yield "grpc.more_ports", grpc.host, port
    if web.enabled and web.port is not None:
        yield "web.port", web.host, web.port
    if metrics.enabled and metrics.port is not None:
        yield "metrics.port", metrics.host, metrics.port
