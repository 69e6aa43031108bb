"""Hosts: on any Ray node, in child processes of a server, or in the process of a command."""

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
from moothall.app.gateway_rules import audit_log, open_rules
from moothall.app.repositories import Home, disk_of, for_hosts, home_of, shares_data_dir
from moothall.app.workspaces import (
    NotifyingWorkspaces,
    WorkspaceServices,
    open_workspace_services,
    sandboxes_on_nodes,
)
from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.keys import keys_of
from moothall.authorization.limits import gateway_limits
from moothall.concurrency import leaves
from moothall.config import FleetMode, MetricsSettings, Settings, secret_values
from moothall.config.models import DEFAULT, Models
from moothall.deliberation.context import (
    Answerers,
    CouncilRules,
    Dependencies,
    PythonBlocks,
    RepositoryAccess,
)
from moothall.deliberation.prompts.excerpts import RepoMapper
from moothall.deliberation.recorded_model import NamedModel
from moothall.domain.ids import digest
from moothall.domain.text import scrub
from moothall.errors import ConfigurationError, FleetUnavailable, MoothallError
from moothall.llm.replicas import open_models
from moothall.ports import ChatModel, RunHarness
from moothall.sandbox.probe import check_layers
from moothall.telemetry import aggregation, configure_logs, log_apart, metrics, record
from moothall.workers import subprocesses
from moothall.workers.host import Host
from moothall.workers.owner import Process, registered, this_process
from moothall.workers.subprocesses import Alive

_GC_THRESHOLDS = 20_000, 20, 20
"""As in `gc.set_threshold`."""


async def host_main(
    name: str,
    report_ready: Callable[[], None],
    *,
    app: Process,
    settings: Settings,
    bus_url: str,
    model_url: str,
    home: Home | None = None,
    node: str = "",
) -> None:
    """Host in a process of its own, started by `app`, until cancelled. Calls `report_ready` once it
    pulls work. `home`: set if the server may be on another machine. `node`: this node's name in the
    fleet.
    """
    # On another node, no other process has created it.
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    secrets = secret_values(settings)
    configure_logs(settings.log, _log_file(settings.data_dir, name), secrets)
    # On this machine the server has checked the sandbox.
    if settings.ray.address is not None and settings.workspace.uses_local_sandbox:
        await check_layers(settings.sandbox)

    def settle_and_report() -> None:
        settle()
        report_ready()

    async with AsyncExitStack() as stack:
        stack.enter_context(registered(settings.data_dir / "hosts", app))
        await stack.enter_async_context(record(settings.trace, name, secrets))
        bus = await stack.enter_async_context(open_bus(settings.bus, bus_url, secrets=secrets))
        await stack.enter_async_context(report_metrics(settings.metrics, bus, name))
        await _host(
            name,
            settle_and_report,
            settings=settings,
            bus=bus,
            bus_url=bus_url,
            model_url=model_url,
            home=home,
            node=node,
        )


async def host_in_process(
    name: str,
    report_ready: Callable[[], None],
    *,
    settings: Settings,
    bus: Bus,
    bus_url: str,
    model_url: str,
) -> None:
    """Host in the process that opened `bus` and checked the sandbox, until cancelled. Logs go to a
    file, as those of other hosts.
    """
    log_apart(settings.log, _log_file(settings.data_dir, name))
    await _host(
        name, report_ready, settings=settings, bus=bus, bus_url=bus_url, model_url=model_url
    )


def _open_harnesses(models: Models) -> RunHarness | None:
    """Return the function that runs harnesses, None if no model has one or the extra `acp` is
    missing.
    """
    if not any(llm.harness for _, llm in models.items()):
        return None
    try:
        # Imported here, because it takes time and most hosts do not need it.
        from moothall.harnesses.running import run_harness
    except ImportError:
        return None
    return run_harness


def _log_file(data_dir: Path, name: str) -> Path:
    return data_dir / "logs" / f"{name}.log"


async def _host(
    name: str,
    report_ready: Callable[[], None],
    *,
    settings: Settings,
    bus: Bus,
    bus_url: str,
    model_url: str,
    home: Home | None = None,
    node: str = "",
) -> None:
    metrics.HOST.set(1, node or platform.node())
    priced = settings.choice.with_known_prices()
    settings = settings.model_copy(update={"llm": priced.default, "models": priced.named})
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(open_models(settings.choice, model_url))
        writer = f"{name}-{digest(bus_url)[:8]}"
        keys = keys_of(settings.guard, settings.data_dir) if home is None else home.keys
        remote_bus = None
        if home is not None:
            writer = f"{writer}-{disk_of(settings.data_dir)}"  # each disk has its own audit chains
            remote_bus = None if shares_data_dir(settings.data_dir, home) else bus
        audit = await stack.enter_async_context(audit_log(settings, bus, keys, writer))
        rules = await stack.enter_async_context(open_rules(settings, bus, keys=keys))
        services = await stack.enter_async_context(
            open_workspace_services(settings, remote_bus, is_host=True)
        )
        parts = Dependencies(
            answerers=Answerers(
                models[DEFAULT],
                settings.llm,
                {name: NamedModel(llm, models[name]) for name, llm in settings.models.items()},
                await _open_remote_agents(settings, stack),
                _open_harnesses(settings.choice),
            ),
            gateway=ToolGateway(audit, bus.publish, rules, limits=gateway_limits(settings.guard)),
            workspaces=NotifyingWorkspaces(services.workspaces, rules.close_workspace),
            repositories=RepositoryAccess(
                services.repositories.read,
                RepoMapper(services.workspaces),
                services.repositories.merge,
            ),
            log=bus,
            rules=_rules_of(settings, services),
            python=PythonBlocks(services.run_code),
            clean=functools.partial(scrub, known_secrets=secret_values(settings)),
        )
        host = Host(
            name,
            bus,
            services.repositories,
            parts,
            settings.ray.seats_per_host,
            StoryBudgets(bus.bucket(BUCKET), settings.limits),
            settings.bus.ack_wait_seconds,
            quotas=Quotas(bus.bucket(BUCKET), settings.quotas),
            node=node,
        )
        report_ready()
        await host.run()


def _rules_of(settings: Settings, services: WorkspaceServices) -> CouncilRules:
    return CouncilRules(
        settings.limits,
        settings.evidence,
        count_parallel_checks=services.count_parallel_checks,
    )


async def _open_remote_agents(settings: Settings, stack: AsyncExitStack) -> Mapping[str, ChatModel]:
    if not settings.agents.endpoints:
        return {}
    # Importing gRPC takes time, and most hosts do not need it.
    from moothall.api.remote_agents import open_remote_agents

    return await stack.enter_async_context(open_remote_agents(settings.agents))


def _separate_main(settings: Settings, instance: str, **arguments: Any) -> Callable[..., Any]:
    """Return `host_main` for a separate process, which ends with this one."""
    main = functools.partial(host_main, app=this_process(), settings=settings, **arguments)
    return functools.partial(_with_instance, instance, main)


async def _with_instance(
    instance: str, main: Any, name: str, report_ready: Callable[[], None], **arguments: Any
) -> None:
    await main(f"{name}-{instance}" if instance else name, report_ready, **arguments)


Hosting = Callable[[Bus, str, str], AbstractAsyncContextManager[Alive]]
"""Starts the hosts. Takes the bus, its URL and the URL of the model."""


@asynccontextmanager
async def open_fleet(
    settings: Settings,
    *,
    mode: FleetMode,
    instance: str = "",
    fall_back: Callable[[str], None] | None = None,
    started: list[asyncio.subprocess.Process] | None = None,
) -> AsyncIterator[Hosting]:
    """Prepare for hosts and yield a function that starts them. `instance` is part of the hosts'
    names if other processes have hosts too. `started`: processes of `subprocesses.starting`.

    If Ray does not start on this machine, or its hosts are not ready in time, call `fall_back` with
    a sentence and run the hosts in this process; without `fall_back` raise `FleetUnavailable`.
    Raises `ConfigurationError` if the Ray at `ray.address` cannot be used.
    """
    count = max(1, settings.ray.hosts)

    def host_here(bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Alive]:
        main = functools.partial(
            host_in_process, settings=settings, bus=bus, bus_url=bus_url, model_url=model_url
        )
        return subprocesses.hosting_in_process(
            count, functools.partial(_with_instance, instance, main)
        )

    def host_in_children(
        _bus: Bus, bus_url: str, model_url: str
    ) -> AbstractAsyncContextManager[Alive]:
        return subprocesses.hosting(
            count,
            _separate_main(settings, instance, bus_url=bus_url, model_url=model_url),
            started=started,
        )

    hosting: Hosting = host_in_children if mode == "subprocess" else host_here
    async with AsyncExitStack() as stack:
        if mode == "ray":
            try:
                host_on_ray = await stack.enter_async_context(_open_ray(settings, instance))
            except FleetUnavailable as error:
                _fall_back(error, fall_back)
            else:
                hosting = (
                    host_on_ray
                    if settings.ray.address
                    else first_ready(host_on_ray, host_here, fall_back)
                )
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
                late, other_errors = group.split(FleetUnavailable)
                if late is None or other_errors is not None:
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
            f"{error.message}. Set MOOTHALL_RAY__MODE=subprocess to run hosts without Ray, or "
            "try again"
        ) from error
    report_progress(f"hosts run in this process instead of Ray: {error.message}")


@asynccontextmanager
async def _open_ray(settings: Settings, instance: str) -> AsyncIterator[Hosting]:
    try:  # in a thread: importing takes a second, in which the model starts to load
        ray_fleet: Any = await asyncio.to_thread(
            importlib.import_module, "moothall.workers.ray_fleet"
        )
    except ModuleNotFoundError as error:
        missing = "Ray is not installed: pip install 'moothall[ray]'"
        if settings.ray.address is None:
            raise FleetUnavailable(missing) from error
        raise ConfigurationError(missing) from error

    def host_on_ray(_bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Alive]:
        main = _separate_main(
            for_hosts(settings),
            instance,
            bus_url=bus_url,
            model_url=model_url,
            home=home_of(settings),
        )
        hosts: AbstractAsyncContextManager[Alive] = ray_fleet.hosting(settings.ray, main)
        return hosts

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(ray_fleet.cluster(settings.ray))
        if settings.workspace.kind == "ray":
            file = _log_file(settings.data_dir, "sandboxes")
            await stack.enter_async_context(sandboxes_on_nodes(settings, file))
        yield host_on_ray


@asynccontextmanager
async def report_metrics(settings: MetricsSettings, bus: Bus, name: str) -> AsyncIterator[None]:
    """Report a host's metrics to the serving process until the context ends."""
    if not settings.enabled:
        yield
        return
    with aggregation.watch():
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(
                aggregation.report(bus.signal, name, aggregation.REPORT_SECONDS), name="figures"
            )
            try:
                yield
            finally:
                reporting.cancel()


def settle() -> None:
    """Enable the garbage collector once a long-lived process is set up, and freeze the objects that
    exist, so that it skips them.

    With the default thresholds, the collector runs after every 700 new objects and repeatedly scans
    all live objects, which takes an eighth of a deliberation's time. Reference counting frees
    nearly everything that a deliberation leaves.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()
