"""Hosts: each alone in its process, wherever Ray put it, or beside the command that it works
for.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from moothall.app.bus import Bus, open_bus
from moothall.app.repositories import (
    Home,
    NotifyingWorkspaces,
    disk_of,
    for_hosts,
    home_of,
    open_hands,
    sees,
)
from moothall.app.rules import audit_log, open_rules
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.keys import keys_of
from moothall.authorization.story_budgets import BUCKET, StoryBudgets
from moothall.concurrency import leaves
from moothall.config import MetricsSettings, Settings, secret_values
from moothall.config.models import DEFAULT
from moothall.deliberation.prompts.repo_map import RepoMapper
from moothall.deliberation.protocols import Dependencies
from moothall.deliberation.recorded_model import NamedModel
from moothall.domain.ids import digest
from moothall.domain.secrets import scrub
from moothall.errors import ConfigurationError, FleetUnavailable, MoothallError
from moothall.llm.replicas import open_models
from moothall.ports import ChatModel
from moothall.sandbox.probe import check_walls
from moothall.telemetry import aggregation, configure_logs, log_apart, metrics, record
from moothall.workers import in_process
from moothall.workers.host import Host
from moothall.workers.in_process import Alive
from moothall.workers.owner import Process, registered, this_process

_YOUNG, _MIDDLE, _OLD = 20_000, 20, 20
"""New objects before a look at the young ones; looks at those before one at the next generation;
the same again.
"""


async def host_main(
    name: str,
    ready: Callable[[], None],
    *,
    app: Process,
    settings: Settings,
    bus_url: str,
    model_url: str,
    home: Home | None = None,
    node: str = "",
) -> None:
    """Host in a process of its own, started by that of `app`, until cancelled. Calls `ready` once
    work is being pulled. `home`: where the server may be on another machine; `node`: how the fleet
    calls this one.
    """
    settings.data_dir.mkdir(
        mode=0o700, parents=True, exist_ok=True
    )  # on another node nobody else has made it
    secrets = secret_values(settings)
    configure_logs(settings.log, _log_file(settings.data_dir, name), secrets)
    if (
        settings.ray.address is not None and settings.workspace.kind == "local"
    ):  # on this machine the server has checked them
        await check_walls(settings.sandbox)

    def settled() -> None:
        settle()
        ready()

    async with AsyncExitStack() as stack:
        stack.enter_context(registered(settings.data_dir / "hosts", app))
        await stack.enter_async_context(record(settings.trace, name, secrets))
        bus = await stack.enter_async_context(open_bus(settings.bus, bus_url, secrets=secrets))
        await stack.enter_async_context(report_figures(settings.metrics, bus, name))
        await _host(
            name,
            settled,
            settings=settings,
            bus=bus,
            bus_url=bus_url,
            model_url=model_url,
            home=home,
            node=node,
        )


async def host_beside(
    name: str,
    ready: Callable[[], None],
    *,
    settings: Settings,
    bus: Bus,
    bus_url: str,
    model_url: str,
) -> None:
    """Host in the process that opened `bus` and checked the walls, until cancelled. What it logs
    goes to a file, as a host's elsewhere.
    """
    log_apart(settings.log, _log_file(settings.data_dir, name))
    await _host(name, ready, settings=settings, bus=bus, bus_url=bus_url, model_url=model_url)


def _log_file(data_dir: Path, name: str) -> Path:
    return data_dir / "logs" / f"{name}.log"


async def _host(
    name: str,
    ready: Callable[[], None],
    *,
    settings: Settings,
    bus: Bus,
    bus_url: str,
    model_url: str,
    home: Home | None = None,
    node: str = "",
) -> None:
    metrics.HOST.set(1, node or platform.node())
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(open_models(settings.choice, model_url))
        writer, keys, far = (
            f"{name}-{digest(bus_url)[:8]}",
            keys_of(settings.guard, settings.data_dir) if home is None else home.keys,
            None,
        )
        if home is not None:
            writer = f"{writer}-{disk_of(settings.data_dir)}"  # each disk has chains of its own
            far = None if sees(settings.data_dir, home) else bus
        audit = await stack.enter_async_context(audit_log(settings, bus, keys, writer))
        rules = await stack.enter_async_context(open_rules(settings, bus, keys=keys))
        hands = await stack.enter_async_context(open_hands(settings, far))
        remote_agents: Mapping[str, ChatModel] = {}
        if settings.agents.endpoints:
            from moothall.api.remote_agents import (
                open_remote_agents,
            )  # gRPC costs start time, and most hosts call nobody

            remote_agents = await stack.enter_async_context(open_remote_agents(settings.agents))
        parts = Dependencies(
            model=models[DEFAULT],
            named_models={
                name: NamedModel(llm, models[name]) for name, llm in settings.models.items()
            },
            remote_agents=remote_agents,
            gateway=ToolGateway(settings.guard, audit, bus.publish, rules),
            workspaces=NotifyingWorkspaces(hands.workspaces, rules.close_workspace),
            read_file=hands.repositories.read,
            merge=hands.repositories.merge,
            log=bus,
            limits=settings.limits,
            evidence=settings.evidence,
            llm=settings.llm,
            run_code=hands.run_code,
            repo_mapper=RepoMapper(hands.workspaces, settings.limits),
            python=settings.runner,
            clean=functools.partial(scrub, known=secret_values(settings)),
        )
        accounts = StoryBudgets(bus.bucket(BUCKET), settings.limits)
        seats, patience = settings.ray.seats_per_host, settings.bus.ack_wait_seconds
        host = Host(name, bus, hands.repositories, parts, seats, accounts, patience, node=node)
        ready()
        await host.run()


async def _with_instance(
    instance: str, main: Any, name: str, ready: Callable[[], None], **more: Any
) -> None:
    await main(f"{name}-{instance}" if instance else name, ready, **more)


Hosting = Callable[[Bus, str, str], AbstractAsyncContextManager[Alive]]
"""Starts the hosts, given the bus, its URL and that of the model."""


@asynccontextmanager
async def open_fleet(
    settings: Settings,
    *,
    on_ray: bool,
    instance: str = "",
    fall_back: Callable[[str], None] | None = None,
) -> AsyncIterator[Hosting]:
    """Start what hosts need and yield what starts the hosts. `instance` is in the names of the
    hosts, where other processes have some.

    If Ray does not start on this machine, or its hosts are not ready in time, call `fall_back` with
    a sentence and run the hosts in this process; without `fall_back` raise `FleetUnavailable`.
    Raises `ConfigurationError` if the Ray at `ray.address` cannot be used.
    """

    def here(bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Alive]:
        main = functools.partial(
            host_beside, settings=settings, bus=bus, bus_url=bus_url, model_url=model_url
        )
        return in_process.hosting(
            max(1, settings.ray.hosts), functools.partial(_with_instance, instance, main)
        )

    hosting: Hosting = here
    async with AsyncExitStack() as stack:
        if on_ray:
            try:
                by_ray = await stack.enter_async_context(_open_ray(settings, instance))
            except FleetUnavailable as error:
                _fall_back(error, fall_back)
            else:
                hosting = by_ray if settings.ray.address else first_ready(by_ray, here, fall_back)
        yield hosting


def first_ready(
    first: Hosting, second: Hosting, fall_back: Callable[[str], None] | None
) -> Hosting:
    """Start hosts with `first`, or with `second` if those are not ready in time."""

    @asynccontextmanager
    async def hosting(bus: Bus, bus_url: str, model_url: str) -> AsyncIterator[Alive]:
        async with AsyncExitStack() as stack:
            try:
                alive = await stack.enter_async_context(first(bus, bus_url, model_url))
            except ExceptionGroup as group:
                late, others = group.split(FleetUnavailable)
                if late is None or others is not None:
                    raise
                _fall_back(next(leaves(late)), fall_back)
                alive = await stack.enter_async_context(second(bus, bus_url, model_url))
            yield alive

    return hosting


def _fall_back(error: MoothallError, report_progress: Callable[[str], None] | None) -> None:
    """Say that hosts run in this process; without `report_progress` raise an error that names
    the setting.
    """
    if report_progress is None:
        raise FleetUnavailable(
            f"{error.message}. Set MOOTHALL_RAY__MODE=process to run hosts without Ray, or try "
            "again"
        ) from error
    report_progress(f"hosts run in this process instead of Ray: {error.message}")


@asynccontextmanager
async def _open_ray(settings: Settings, instance: str) -> AsyncIterator[Hosting]:
    try:  # in a thread, for it takes a second, in which the model begins to load
        ray_fleet: Any = await asyncio.to_thread(
            importlib.import_module, "moothall.workers.ray_fleet"
        )
    except ModuleNotFoundError as error:
        missing = "Ray is not installed: pip install 'moothall[fleet]'"
        if settings.ray.address is None:
            raise FleetUnavailable(missing) from error
        raise ConfigurationError(missing) from error

    def by_ray(_bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Alive]:
        given: dict[str, Any] = {
            "settings": for_hosts(settings),
            "bus_url": bus_url,
            "model_url": model_url,
            "home": home_of(settings),
        }
        main = functools.partial(host_main, app=this_process(), **given)
        hosts: AbstractAsyncContextManager[Alive] = ray_fleet.hosting(
            settings.ray, functools.partial(_with_instance, instance, main)
        )
        return hosts

    async with ray_fleet.cluster(settings.ray):
        yield by_ray


@asynccontextmanager
async def report_figures(settings: MetricsSettings, bus: Bus, name: str) -> AsyncIterator[None]:
    """Report a host's figures to the serving process, while the context lasts."""
    if not settings.enabled:
        yield
        return
    with aggregation.watch():
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(
                aggregation.report(bus.signal, name, settings.report_seconds), name="figures"
            )
            try:
                yield
            finally:
                reporting.cancel()


def settle() -> None:
    """Call once a long-lived process is set up: what it holds by now stays, and is never looked
    through again.

    By default the collector looks after every 700 new objects and ever again at all that lives: an
    eighth of what a deliberation costs. Nearly everything that one leaves goes without it, by its
    count of references.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
