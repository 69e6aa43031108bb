"""The serving process: bus, model, fleet, collector and APIs, or an attachment to a process that is
running already.

An attaching process compares its settings with those of the serving process.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from moothall import telemetry
from moothall.app import preflight
from moothall.app.bus import (
    ALL,
    Bus,
    ReportProgress,
    bus_url,
    embedded_parts,
    exclusive_lease,
    hold_or_find,
    hosts_on,
    instance,
    open_bus,
    roles_of,
)
from moothall.app.preflight import Address, check_first, check_model, check_sandbox, defaults
from moothall.concurrency import (
    enter_in_own_task,
    report_if_slow,
    run_in_background,
    start_in_own_task,
)
from moothall.config import (
    FleetMode,
    LlmSettings,
    RaySettings,
    Settings,
    environment,
    secret_values,
)
from moothall.domain.ids import LOCAL, digest
from moothall.domain.text import scrub
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.events.registry import EVENTS
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.ports import Repositories
from moothall.settings import FAMILIES
from moothall.workers import subprocesses

if TYPE_CHECKING:  # slow to import
    from moothall.app.api import ApiInputs
    from moothall.app.graph import Answers
    from moothall.app.host import Hosting
    from moothall.collector.collector import Collector
    from moothall.collector.records import Observer
    from moothall.deliberation.prompts.briefing import Briefings
    from moothall.orchestrator.service import DeliberationService
    from moothall.sandbox.probe import Layer
    from moothall.workers.subprocesses import Alive

_SECTIONS = {
    *("llm", "models", "bus", "ray", "limits", "evidence", "seats", "guard"),
    *("workspace", "jobs", "sandbox", "runner", "wasm"),
    *(family.section for family in FAMILIES),
}
_IGNORED = {"wait_seconds", "seats_in_turn"}
T = TypeVar("T")
_MAX_SHOWN = 8
_NO_MODEL = "http://127.0.0.1:9"
"""The address of the model for hosts that ask none: nothing answers at the discard port."""
_POLL_SECONDS, _DRAIN_SECONDS, _OWNER_SECONDS, _LINK_SECONDS = 0.1, 0.5, 1.0, 10.0


def fingerprints(settings: Settings) -> dict[str, str]:
    """Return a digest of each setting that affects the work, by its name. Secrets are left out."""
    values = settings.model_dump(
        mode="json",
        include=_SECTIONS,
        exclude={
            "ray": {"mode"},
            "guard": {"audit_days", "audit_exporter"},
            "llm": _IGNORED,
            "models": {"__all__": _IGNORED},
        },
    )
    return {name: digest(repr(value))[:16] for name, value in _flatten(values, "")}


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe_difference(settings: Settings, address: Address) -> str:
    """Return which settings differ from those at `address` and how to attach, or an empty
    string.
    """
    own_fingerprints, server_fingerprints = fingerprints(settings), address.settings
    names = sorted(
        name
        for name in own_fingerprints.keys() | server_fingerprints.keys()
        if own_fingerprints.get(name) != server_fingerprints.get(name)
    )
    if not names:
        return ""
    variables = {name: f"MOOTHALL_{name.upper().replace('.', '__')}" for name in names}
    to_unset = [variables[name] for name in names if variables[name] in environment()]
    to_set = [name for name in names if variables[name] not in environment()]
    steps = [f"unset {_join_names(to_unset)}"] if to_unset else []
    if to_set:
        steps.append(
            f"set {_join_names(to_set)} as that process has {'it' if len(to_set) == 1 else 'them'}"
        )
    server = (
        f", or let it work with its own settings: --server 127.0.0.1:{address.grpc_port}"
        if address.grpc_port
        else ""
    )
    return (
        f"process {address.pid} serves {settings.data_dir} with other settings: "
        f"{_join_names(names)}. To attach to it, {' and '.join(steps)}{server}. Otherwise stop it, "
        "or set MOOTHALL_DATA_DIR to another folder"
    )


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (
        f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    )


@dataclass(frozen=True, slots=True)
class App:
    """The services of a command. A port is 0 if it is not served."""

    deliberations: DeliberationService
    bus: Bus
    grpc_port: int
    metrics_port: int = 0
    http_port: int = 0
    link: str = ""


@asynccontextmanager
async def open_app(
    settings: Settings,
    report_progress: ReportProgress,
    *,
    serving: bool = False,
    model_checked: bool = False,
    asks_model: bool = True,
) -> AsyncIterator[App]:
    """Serve this data directory, or attach to the process that does.

    `serving`: a second server with embedded parts on the same data directory is an error.
    `model_checked`: the model server has answered just now, or is not asked. `asks_model`: False
    if no embedded model is needed.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            telemetry.record(settings.trace, "serve" if serving else "cli", secret_values(settings))
        )
        roles = roles_of(settings) if serving else ALL
        parts = embedded_parts(settings, roles)
        owns_directory, address = not serving or bool(parts), None
        if owns_directory:
            address = await hold_or_find(settings.data_dir, report_progress, stack)
        elif roles == ALL:  # other processes may share the directory
            with suppress(preflight.DirectoryTaken):
                stack.enter_context(preflight.hold(settings.data_dir))
                owns_directory = True
        if address is not None and serving:
            raise ConfigurationError(
                f"process {address.pid} already serves the data directory {settings.data_dir}, and "
                f"only one process can have an embedded {' or '.join(parts)}; stop it, or set "
                "MOOTHALL_DATA_DIR to another folder"
            )
        if address is not None:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch_owner(settings.data_dir), name="owner")
                yield await _attach(settings, address, stack)
                watching.cancel()
            return
        builder = _ServerBuilder(
            settings,
            report_progress,
            stack,
            roles if serving else None,
            asks_model=asks_model,
        )
        app, collector = await builder.build(
            owns_directory=owns_directory, model_checked=model_checked
        )
        try:
            yield app
        # The output of this command is closed, but other commands may still be attached.
        except (OSError, SystemExit):
            await _await_attached_commands(settings, collector, report_progress, serving=serving)
            raise
        await _await_attached_commands(settings, collector, report_progress, serving=serving)


async def _watch_owner(data_dir: Path) -> None:
    """Raise `BusUnavailable` when the serving process ends, because its bus never answers again."""
    while True:
        await asyncio.sleep(_OWNER_SECONDS)
        try:
            with preflight.hold(data_dir):
                break
        except preflight.DirectoryTaken:
            continue
    raise BusUnavailable(
        f"the process that served {data_dir} ended; run the command again with the same --task-id "
        "to continue the work"
    )


async def _attach(settings: Settings, address: preflight.Address, stack: AsyncExitStack) -> App:
    if difference := describe_difference(settings, address):
        raise ConfigurationError(difference)
    from moothall.app.repositories import trusted_repositories
    from moothall.authorization.budgets import BUCKET, Quotas
    from moothall.orchestrator.service import DeliberationService

    bus = await stack.enter_async_context(open_bus(settings.bus, address.bus_url))
    council_registry = CouncilRegistry(bus, settings.limits, settings.choice)
    await council_registry.refresh()
    deliberations = DeliberationService(
        bus,
        trusted_repositories(settings),
        defaults(settings),
        councils=council_registry,
        quotas=Quotas(bus.bucket(BUCKET), settings.quotas),
    )
    return App(deliberations, bus, address.grpc_port)


class _ServerBuilder:
    """Opens the parts of a process on an exit stack. Modules are imported in a thread, while the
    processes of hosts import theirs, the bus starts and the sandbox is tried: each takes half a
    second or more.

    `serves`: the served roles, or None for a command.
    """

    def __init__(
        self,
        settings: Settings,
        report_progress: ReportProgress,
        stack: AsyncExitStack,
        serves: frozenset[str] | None,
        *,
        asks_model: bool,
    ) -> None:
        self._settings, self._report_progress, self._stack = settings, report_progress, stack
        self._embeds_model = asks_model and settings.llm.base_url is None
        self._serves, self._serving = serves, serves is not None
        self._roles = ALL if serves is None else serves
        self._has_hosts = "hosts" in self._roles
        self._fleet_mode = _choose_mode(settings.ray, serving=self._serving)
        self._on_ray = self._has_hosts and self._fleet_mode == "ray"

    async def build(
        self, *, owns_directory: bool, model_checked: bool
    ) -> tuple[App, Collector | Observer]:
        """Open all parts that the roles need. `owns_directory`: commands on this data directory can
        attach to this process.
        """
        gc.disable()  # until `settle`: importing leaves nearly no garbage
        try:
            return await self._build(owns_directory=owns_directory, model_checked=model_checked)
        finally:
            gc.enable()

    async def _build(
        self, *, owns_directory: bool, model_checked: bool
    ) -> tuple[App, Collector | Observer]:
        ending = self._stack.enter_context(ExitStack())
        processes = await self._start_processes()
        await check_first(self._settings, self._report_progress, serving=self._serving)
        _report_start(
            self._report_progress,
            on_ray=self._on_ray,
            model=self._has_hosts and self._embeds_model,
        )
        bus_opening, layers = await self._check_while_starting(model_checked=model_checked)
        instance_name = instance(self._settings, ending) if self._serving else ""
        fleet = await self._start_fleet(instance_name, processes)
        model = await self._start_model()
        url, bus = await self._await_opening("the bus", bus_opening)
        graph_opening = await self._start_graph(bus)
        repositories = await self._serve_repositories(bus)
        # Closed in reverse order: the hosts stop first, and the collector folds their last events.
        collector = await self._start_collector(bus, repositories)
        council_registry = await self._start_council_registry(bus)
        model_address = await self._await_opening("the model", model) or self._missing_model
        hosts_starting = await self._start_hosts(fleet, bus, url, model_address)
        if self._serving:
            await asyncio.to_thread(importlib.import_module, "moothall.app.api")
        graph = await self._await_opening("the graph", graph_opening)
        create_briefings = await self._open_briefings(graph, model_address)
        deliberations = self._deliberations(bus, repositories, council_registry, create_briefings)
        app = App(deliberations, bus, 0)
        if self._serving:
            from moothall.app.api import ApiInputs

            async def count_alive() -> tuple[int, int]:
                return await (await hosts_starting)()

            inputs = ApiInputs(
                bus,
                deliberations,
                council_registry,
                collector,
                graph,
                count_alive,
                layers,
                model_address,
                create_briefings,
                self._roles,
                instance_name,
            )
            app = await self._serve_apis(inputs)
        await self._await_opening("Ray" if self._on_ray else "the hosts", hosts_starting)
        from moothall.app.host import settle

        settle()
        if owns_directory:
            await self._serve_task_list(bus, collector)
            _announce(self._settings, url, app, self._stack)
        self._stack.callback(
            lambda: ending.enter_context(self._report_if_slow("the started parts to end"))
        )
        return app, collector

    async def _serve_task_list(self, bus: Bus, collector: Collector | Observer) -> None:
        """Answer `moothall list` of this data directory."""
        from moothall.app.task_list import serve_task_list
        from moothall.app.tasks import Tasks

        # On a shared bus, other processes may know more.
        active_states = collector.states if self._settings.bus.url is None else None
        tasks = Tasks(self._settings, bus, served=True, active_states=active_states)
        await self._stack.enter_async_context(serve_task_list(tasks, self._settings.data_dir))

    def _deliberations(
        self,
        bus: Bus,
        repositories: Repositories,
        council_registry: CouncilRegistry,
        create_briefings: functools.partial[Briefings],
    ) -> DeliberationService:
        from moothall.authorization.budgets import BUCKET, Quotas
        from moothall.orchestrator.service import DeliberationService

        return DeliberationService(
            bus,
            repositories,
            defaults(self._settings),
            councils=council_registry,
            write_briefing=create_briefings().brief_seats,
            quotas=Quotas(bus.bucket(BUCKET), self._settings.quotas),
        )

    async def _await_opening(self, subject: str, opening: Awaitable[T]) -> T:
        with self._report_if_slow(subject):
            return await opening

    @property
    def _missing_model(self) -> str:
        return _NO_MODEL if self._has_hosts else ""

    def _report_if_slow(self, subject: str) -> AbstractContextManager[None]:
        return report_if_slow(self._report_progress, subject)

    async def _check_while_starting(
        self, *, model_checked: bool
    ) -> tuple[asyncio.Future[tuple[str, Bus]], Sequence[Layer]]:
        """Start the bus and import the modules while the model server and the sandbox are checked.
        Return the opening of the bus and the layers of the sandbox.
        """
        importing = asyncio.ensure_future(asyncio.to_thread(_import_parts))
        async with check_model(
            self._settings,
            self._report_progress,
            self._roles,
            serving=self._serving,
            model_checked=model_checked,
        ):
            bus_opening = await self._stack.enter_async_context(start_in_own_task(self._open_bus()))
            layers = await check_sandbox(self._settings, self._report_progress, self._roles)
            await importing
        return bus_opening, layers

    async def _start_processes(self) -> list[asyncio.subprocess.Process]:
        """Start the processes of hosts, which import their modules while this process checks and
        starts its own parts.
        """
        if not (self._has_hosts and self._fleet_mode == "subprocess"):
            return []
        starting = subprocesses.starting(max(1, self._settings.ray.hosts), "moothall.app.host")
        return await self._stack.enter_async_context(starting)

    async def _start_fleet(
        self, instance_name: str, processes: list[asyncio.subprocess.Process]
    ) -> asyncio.Future[Hosting]:
        from moothall.app.host import open_fleet

        may_fall_back = not (self._serving or self._settings.ray.address)
        fleet = open_fleet(
            self._settings,
            mode=self._fleet_mode if self._has_hosts else "process",
            instance=instance_name,
            fall_back=self._report_progress if may_fall_back else None,
            started=processes,
        )
        return await self._stack.enter_async_context(start_in_own_task(fleet))

    async def _start_model(self) -> asyncio.Future[str]:
        """Start the local model server if one is needed. The result is the model server's URL."""
        settings = self._settings
        model = model_url(
            settings.llm,
            settings.data_dir,
            self._report_progress,
            needed=self._has_hosts and self._embeds_model,
        )
        return await self._stack.enter_async_context(start_in_own_task(model))

    @asynccontextmanager
    async def _open_bus(self) -> AsyncIterator[tuple[str, Bus]]:
        """Start the embedded bus if none is configured, and yield the URL and a connection."""
        settings = self._settings
        async with (
            bus_url(settings.bus, settings.data_dir) as url,
            open_bus(
                settings.bus, url, secrets=secret_values(settings), alone=not settings.bus.url
            ) as bus,
        ):
            yield url, bus

    async def _start_graph(self, bus: Bus) -> asyncio.Future[Answers]:
        from moothall.app.graph import graph_of

        graph = graph_of(self._settings, bus, self._report_progress, self._serves)
        return await self._stack.enter_async_context(start_in_own_task(graph))

    async def _serve_repositories(self, bus: Bus) -> Repositories:
        from moothall.app.repositories import serve_repositories, trusted_repositories

        trusted = trusted_repositories(self._settings)
        return await self._stack.enter_async_context(
            serve_repositories(self._settings, bus, trusted, serves=self._roles != {"hosts"})
        )

    async def _start_collector(self, bus: Bus, repositories: Repositories) -> Collector | Observer:
        """Start the collector and the observer that this process needs. Return the one that lists
        the running deliberations.
        """
        role = CollectorRole(
            self._settings,
            bus,
            repositories,
            decides="collector" in self._roles,
            watches=self._serving and bool(self._roles & {"api", "page"}),
        )
        await enter_in_own_task(self._stack, run_in_background(role.run(), "collector"))
        return role.observer

    async def _start_council_registry(self, bus: Bus) -> CouncilRegistry:
        """Load the registered councils, and follow their changes."""
        council_registry = CouncilRegistry(bus, self._settings.limits, self._settings.choice)
        await council_registry.refresh()
        await enter_in_own_task(self._stack, run_in_background(council_registry.run(), "councils"))
        return council_registry

    async def _start_hosts(
        self, fleet: asyncio.Future[Hosting], bus: Bus, url: str, model_address: str
    ) -> asyncio.Future[Alive]:
        """Start the hosts of this process, if it has any. The result is a function that counts the
        hosts.
        """
        with self._report_if_slow("Ray" if self._on_ray else "the hosts"):
            start_hosts = await fleet
        hosts: AbstractAsyncContextManager[Alive] = (
            start_hosts(bus, url, model_address)
            if self._has_hosts
            else nullcontext(functools.partial(_count_answering, bus))
        )
        return await self._stack.enter_async_context(start_in_own_task(hosts))

    async def _open_briefings(
        self, graph: Answers, model_address: str
    ) -> functools.partial[Briefings]:
        """Return a function that creates briefings. The model server counts their tokens; without
        one, they are estimated.
        """
        from moothall.deliberation.prompts.briefing import Briefings, estimate
        from moothall.llm.windows import counting

        count = (
            await self._stack.enter_async_context(counting(self._settings.llm, model_address))
            if model_address
            else estimate
        )
        return functools.partial(
            Briefings,
            graph.ask,
            self._settings.limits,
            count=count,
            clean=functools.partial(scrub, known_secrets=secret_values(self._settings)),
        )

    async def _serve_apis(self, inputs: ApiInputs) -> App:
        from moothall.app.api import open_apis

        ports = await self._stack.enter_async_context(
            open_apis(self._settings, inputs, self._report_progress)
        )
        return App(
            inputs.deliberations, inputs.bus, ports.grpc, ports.metrics, ports.http, ports.link
        )


def _import_parts() -> None:
    """Import the modules that every process needs, those of hosts first."""
    for name in ("app.host", "app.graph", "collector.collector", "orchestrator.service"):
        importlib.import_module(f"moothall.{name}")


def _report_start(report_progress: ReportProgress, *, on_ray: bool, model: bool) -> None:
    if on_ray or model:
        parts = ("the bus", *(["Ray"] if on_ray else []), *(["the model"] if model else []))
        report_progress(f"starting {', '.join(parts[:-1])} and {parts[-1]}")
    if model:
        report_progress(
            "no model server is set: a small local model answers, for trials only; `moothall init` "
            "sets one"
        )


def _announce(settings: Settings, url: str, app: App, stack: AsyncExitStack) -> None:
    """Publish the address of this process to other commands until the stack ends."""
    address = preflight.Address(
        os.getpid(), url, app.grpc_port, fingerprints(settings), page_at(app.link)
    )
    preflight.announce(settings.data_dir, address)
    stack.callback(preflight.remove_address, settings.data_dir)


async def _count_answering(bus: Bus) -> tuple[int, int]:
    """Return the number of hosts of other processes that answer, twice: as answering and as
    total.
    """
    count = len(await hosts_on(bus))
    return count, count


def page_at(link: str) -> str:
    """Return the URL of the page that a sign-in link belongs to."""
    return link.partition("/sign-in")[0]


def _choose_mode(ray: RaySettings, *, serving: bool) -> FleetMode:
    """Return where the hosts of a server (`serving`) or a single command run."""
    if ray.mode != "auto":
        return ray.mode
    if ray.address is not None:
        return "ray"
    if not serving:
        return "process"
    is_installed = importlib.util.find_spec("ray") is not None
    return "ray" if ray.hosts != 1 and is_installed else "subprocess"


async def _await_attached_commands(
    settings: Settings,
    collector: Collector | Observer,
    report_progress: ReportProgress,
    *,
    serving: bool,
) -> None:
    """Let commands that are attached to this process finish, unless it is a server that was
    stopped, or other processes on its bus take over.
    """
    if serving or settings.bus.url is not None:
        return
    preflight.remove_address(settings.data_dir)
    await asyncio.sleep(_DRAIN_SECONDS)
    reported_count = 0
    while collector.active_count:
        if reported_count != collector.active_count:
            reported_count = collector.active_count
            with suppress(OSError, SystemExit):  # the output may be closed
                report_progress(
                    f"{reported_count} other deliberation(s) are under way here; waiting for them"
                )
        await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def model_url(
    llm: LlmSettings, data_dir: Path, report_progress: ReportProgress, *, needed: bool = True
) -> AsyncIterator[str]:
    """Yield the model server's root URL once it can be called; empty if none is configured and none
    is needed.
    """
    if llm.base_url or not needed:
        yield llm.base_url or ""
        return
    from moothall.llm.local import local_model_server

    async with local_model_server(llm, data_dir, report_progress) as url:
        yield url


def collector_of(settings: Settings, bus: Bus, repositories: Repositories) -> Collector:
    """Return a collector that decides, in turns with others on the same bus."""
    from moothall.collector.collector import Collector

    return Collector(bus, repositories, lock=functools.partial(exclusive_lease, settings, bus))


class CollectorRole:
    """The collector of this process if it decides, and the observer of all running deliberations.

    `decides`: whether this process decides. `watches`: whether running deliberations are queried
    here. A collector can answer that if no other process decides, which is the case with an
    embedded bus.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        repositories: Repositories,
        *,
        decides: bool,
        watches: bool,
    ) -> None:
        from moothall.collector.records import Observer

        self._bus = bus
        self._collector = collector_of(settings, bus, repositories) if decides else None
        needs_observer = watches and (self._collector is None or settings.bus.url is not None)
        self._observer = Observer(bus) if needs_observer else None
        self.observer: Collector | Observer = self._observer or self._collector or Observer(bus)

    async def run(self) -> None:
        """Decide and observe until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._collector is not None:
                group.create_task(self._collector.run(), name="deciding")
            if self._observer is not None:
                last_seq = (await self._bus.state(EVENTS.name)).last_seq
                group.create_task(self._observer.run(last_seq), name="looking on")


async def page_link(settings: Settings, report_progress: ReportProgress) -> str | None:
    """Return a link that signs a browser in once; None if nothing is served. Raises
    `ConfigurationError` if the process that holds the data directory serves no page.
    """
    async with AsyncExitStack() as stack:
        if (address := await hold_or_find(settings.data_dir, report_progress, stack)) is None:
            return None
    from moothall.api.identity import read_tokens

    token = next(
        (
            token
            for token, principal in read_tokens(settings.grpc, settings.data_dir).items()
            if principal == LOCAL
        ),
        "",
    )
    if not address.page or not token:
        raise ConfigurationError(
            f"process {address.pid} uses {settings.data_dir} and has no page that can be opened "
            "here: it is a single command, or its page is off, uses TLS or needs another token. "
            "Wait until it ends, or set MOOTHALL_DATA_DIR"
        )
    return address.page + await asyncio.to_thread(_request_link_path, address.page, token)


def _request_link_path(page: str, token: str) -> str:
    url = urlsplit(page)
    connection = HTTPConnection(url.hostname or "", url.port, timeout=_LINK_SECONDS)
    try:
        connection.request(
            "POST", "/api/v1/sign-in-links", headers={"Authorization": f"Bearer {token}"}
        )
        return str(json.loads(connection.getresponse().read())["path"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"the page at {page} returned no link ({error}); is another server there?"
        ) from error
    finally:
        connection.close()
