"""The APIs of a server according to the settings: gRPC, HTTP, and the metrics page."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from moothall import telemetry
from moothall.api.accounts import AccessTokens, UserAccounts
from moothall.api.dependencies import BUCKET as BUNDLES
from moothall.api.dependencies import (
    ApiDependencies,
    Bundles,
    ContextServices,
    HealthCheck,
    Probe,
    Records,
    ServingState,
    StoryServices,
    ToolServices,
)
from moothall.api.grpc_server import grpc_server
from moothall.api.http.asgi import ServerLimits
from moothall.api.http.server import Served, http_server
from moothall.api.identity import BearerTokens, TokenSource, read_tokens
from moothall.api.openid import IssuedTokens, Issuer
from moothall.api.web.routes import prepare_page
from moothall.api.web.sign_in import Provider
from moothall.app.bus import Bus, ReportProgress, exclusive_lease, lease_of, watch_log
from moothall.app.gateway_rules import open_rules
from moothall.app.graph import Answers
from moothall.app.repositories import trusted_repositories
from moothall.app.tool_sessions import (
    WRITER,
    agent_service,
    execution_service,
    tool_service,
    workflow_service,
)
from moothall.authorization.audit import Decisions
from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
from moothall.authorization.rules import Rules
from moothall.collector.collector import Collector
from moothall.collector.overview import Overview
from moothall.collector.records import Observer
from moothall.collector.statistics import Statistics
from moothall.concurrency import enter_in_own_task, report_if_slow, run_in_background
from moothall.config import MetricsSettings, Models, Settings, secret_values
from moothall.config.models import DEFAULT
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.event import Channel
from moothall.domain.status import Condition
from moothall.domain.text import scrub
from moothall.errors import ModelUnavailable, Temporary
from moothall.events.registry import EVENTS
from moothall.llm.startup_check import check_servers
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.service import DeliberationService
from moothall.orchestrator.story_writer import StoryWriter
from moothall.sandbox.probe import Layer
from moothall.stories.board import Board
from moothall.stories.executor import StoryExecutor
from moothall.stories.lifecycle import lifecycle
from moothall.stories.notes import Notes
from moothall.stories.planner import Planner
from moothall.telemetry import aggregation, metrics
from moothall.tool_sessions.bus_api import of_tasks
from moothall.tool_sessions.manager import ToolSessions
from moothall.workers.subprocesses import Alive
from moothall.workflows.runner import Workflows

log = telemetry.get_logger(__name__)

_COACH_SECONDS = 60.0
_ARCHITECTS = 3
"""Seats that divide a story into tasks, if a model server is configured."""
"""The time in which the model may refine or suggest a story; then rules do it."""

ProbeResult = tuple[Condition, str]


def checkup(
    models: Models,
    *,
    bus: Bus,
    model_url: str,
    graph: Answers,
    alive: Alive,
    layers: Sequence[Layer],
) -> HealthCheck:
    """Return the health check of all parts. The graph is not required, because nothing waits for
    it.
    """

    async def probe_bus() -> ProbeResult:
        state = await bus.state(EVENTS.name)
        return Condition.HEALTHY, f"{state.messages} events, the last is {state.last_seq}"

    async def probe_model() -> ProbeResult:
        servers_by_model = await check_servers(models, model_url)
        fault = next((servers.fault for servers in servers_by_model.values() if servers.fault), "")
        if not any(servers_by_model[name].answering for name in models.chain("")):
            raise ModelUnavailable(servers_by_model[DEFAULT].fault)
        summaries = [
            f"{servers.answering} of {servers.configured} servers answer"
            + (f" as {name}" if models.named else "")
            for name, servers in servers_by_model.items()
        ]
        return (
            (Condition.DEGRADED, "; ".join((*summaries, fault)))
            if fault
            else (Condition.HEALTHY, "; ".join(summaries))
        )

    async def probe_graph() -> ProbeResult:
        return Condition.HEALTHY, f"written up to event {await graph.position()}"

    async def probe_fleet() -> ProbeResult:
        answering, total = await alive()
        if not answering:
            raise Temporary(f"none of {total} hosts answers")
        return (
            Condition.HEALTHY if answering == total else Condition.DEGRADED,
            f"{answering} of {total} hosts are at work",
        )

    async def probe_sandbox() -> ProbeResult:
        missing = [layer.name for layer in layers if not layer.ok]
        if missing:
            return Condition.DEGRADED, f"missing, as allowed: {', '.join(missing)}"
        return Condition.HEALTHY, f"all {len(layers)} layers hold"

    return HealthCheck(
        {
            "bus": Probe(probe_bus),
            **({"model": Probe(probe_model)} if model_url else {}),
            "fleet": Probe(probe_fleet),
            **({"sandbox": Probe(probe_sandbox)} if layers else {}),
            "graph": Probe(probe_graph, needed=False),
        }
    )


@dataclass(frozen=True, slots=True)
class ApiInputs:
    """The parts of a process that its APIs use."""

    bus: Bus
    deliberations: DeliberationService
    council_registry: CouncilRegistry
    collector: Collector | Observer
    graph: Answers
    alive: Alive
    sandbox_layers: Sequence[Layer]
    model_url: str
    briefed: Callable[[Rules], Briefings]
    roles: frozenset[str]
    instance: str
    """A name that is unique on the bus; empty with an embedded bus."""


@dataclass(frozen=True, slots=True)
class ListeningPorts:
    """The ports of the APIs. 0: not served."""

    grpc: int = 0
    http: int = 0
    metrics: int = 0
    link: str = ""


@asynccontextmanager
async def open_apis(
    settings: Settings, inputs: ApiInputs, report_progress: ReportProgress
) -> AsyncIterator[ListeningPorts]:
    """Serve until the context ends. Raises `ConfigurationError`."""
    async with AsyncExitStack() as stack:
        metrics = await enter_in_own_task(stack, _open_metrics(settings, inputs))
        planner = Planner(inputs.bus, settings.limits, inputs.deliberations.check)
        board = Board(inputs.bus)
        executor = _story_executor(settings, inputs, planner, board)
        await _start_background_work(stack, settings, inputs, executor, report_progress)
        rules = await enter_in_own_task(stack, open_rules(settings, inputs.bus))
        tool_sessions, workflows = (
            await _open_tools(stack, settings, inputs, rules, report_progress)
            if "tools" in inputs.roles
            else (None, None)
        )
        dependencies = _api_dependencies(
            settings,
            inputs,
            planner,
            board,
            rules,
            tool_sessions=tool_sessions,
            workflows=workflows,
        )
        bearers = await _open_bearers(settings)
        http = await stack.enter_async_context(_serve_http(settings, dependencies, bearers))
        server = await stack.enter_async_context(
            grpc_server(settings.grpc, dependencies, bearers, settings.serve.leave_seconds)
        )
        yield ListeningPorts(server.port, http.port, metrics, http.link)


def _open_metrics(settings: Settings, inputs: ApiInputs) -> AbstractAsyncContextManager[int]:
    async def refresh() -> None:
        await asyncio.gather(
            inputs.bus.measure(),
            *([check_servers(settings.choice, inputs.model_url)] if inputs.model_url else []),
        )

    return serve_metrics(
        settings.metrics, inputs.bus, lambda: inputs.collector.active_count, refresh
    )


async def _start_background_work(
    stack: AsyncExitStack,
    settings: Settings,
    inputs: ApiInputs,
    executor: StoryExecutor,
    report_progress: ReportProgress,
) -> None:
    """Start the background tasks of the roles collector and planning."""
    bus = inputs.bus
    if "collector" in inputs.roles:
        log_check = run_in_background(
            watch_log(settings.data_dir, bus, report_progress),
            "log-check",
        )
        await enter_in_own_task(stack, log_check)
        await enter_in_own_task(stack, send_webhooks(settings, bus))
    if "planning" in inputs.roles:
        await asyncio.to_thread(lifecycle)  # parses the table, which takes some milliseconds
        await enter_in_own_task(stack, run_in_background(executor.run(), "planner"))


def _api_dependencies(
    settings: Settings,
    inputs: ApiInputs,
    planner: Planner,
    board: Board,
    rules: Rules,
    *,
    tool_sessions: ToolSessions | None,
    workflows: Workflows | None,
) -> ApiDependencies:
    """Return the parts that the APIs call."""
    bus, deliberations = inputs.bus, inputs.deliberations
    agents = agent_service(settings, bus, deliberations, tool_sessions) if tool_sessions else None
    return ApiDependencies(
        deliberations=deliberations,
        councils=inputs.council_registry,
        stories=StoryServices(
            board,
            planner,
            StoryWriter(deliberations, _COACH_SECONDS, model=settings.llm.base_url is not None),
            StoryBudgets(bus.bucket(BUCKET), settings.limits),
        ),
        records=Records(
            Overview(bus, inputs.collector.states),
            Statistics(bus, inputs.council_registry, inputs.collector.deliberations),
            Decisions(bus),
        ),
        context=ContextServices(
            inputs.briefed(rules),
            inputs.graph.ask,
            Notes(bus, functools.partial(scrub, known_secrets=secret_values(settings))),
            Bundles(bus.bucket(BUNDLES)),
        ),
        tools=ToolServices(
            tool_sessions,
            rules.parking,
            execution_service(tool_sessions) if tool_sessions else None,
            workflows,
            agents,
        ),
        quotas=Quotas(bus.bucket(BUCKET), settings.quotas),
        models=settings.choice,
        repositories=trusted_repositories(settings),
        serving=ServingState(inputs.roles & {"api", "page"}),
        health_check=checkup(
            settings.choice,
            bus=bus,
            model_url=inputs.model_url,
            graph=inputs.graph,
            alive=inputs.alive,
            layers=inputs.sandbox_layers,
        ),
    )


def _story_executor(
    settings: Settings, inputs: ApiInputs, planner: Planner, board: Board
) -> StoryExecutor:
    # The bundled small model cannot divide stories well.
    architects = _ARCHITECTS if settings.llm.base_url is not None else 0
    return StoryExecutor(
        inputs.bus,
        inputs.deliberations,
        settings.limits,
        planner,
        trusted_repositories(settings).land,
        architects=architects,
        lock_step=functools.partial(exclusive_lease, settings, inputs.bus),
        board=board,
    )


async def _open_tools(
    stack: AsyncExitStack,
    settings: Settings,
    inputs: ApiInputs,
    rules: Rules,
    report_progress: ReportProgress,
) -> tuple[ToolSessions, Workflows]:
    """Open tool sessions and workflows, once no other process has them."""
    bus = inputs.bus
    if settings.bus.url is not None:
        # Workspaces and workflows belong to one process. A second one would resume what the first
        # is running.
        with report_if_slow(report_progress, "the process that has the role tools to end"):
            await enter_in_own_task(stack, exclusive_lease(settings, bus, "tools"))
    writer = f"{WRITER}-{inputs.instance}" if inputs.instance else WRITER
    tool_sessions = await enter_in_own_task(stack, tool_service(settings, bus, rules, writer))
    workflows = await enter_in_own_task(stack, workflow_service(bus, tool_sessions))
    tool_sessions.await_calls(of_tasks(inputs.deliberations))
    return tool_sessions, workflows


async def _open_bearers(settings: Settings) -> BearerTokens:
    """Return the accepted tokens. Raises `ConfigurationError`, also for an issuer that does not
    match the settings; an unreachable one is only logged.
    """
    has_issuer = bool(settings.oidc.audience)
    sources: list[TokenSource] = [AccessTokens(settings.data_dir)]
    if has_issuer:
        issuer = Issuer(settings.oidc)
        try:
            await issuer.check()
        except Temporary as error:
            log.warning(
                "the issuer is unreachable; its tokens are refused until it answers",
                setting="oidc.issuer",
                reason=error.message,
            )
        sources.append(IssuedTokens(issuer))
    tokens = read_tokens(settings.grpc, settings.data_dir, has_others=has_issuer)
    return BearerTokens(tokens, sources)


@asynccontextmanager
async def _serve_http(
    settings: Settings, dependencies: ApiDependencies, bearers: BearerTokens
) -> AsyncIterator[Served]:
    """Serve HTTP, and yield its port, or 0 if HTTP is disabled. Raises `ConfigurationError`."""
    if not settings.web.enabled:
        yield Served(0)
        return

    configured = bool(settings.grpc.token or settings.grpc.tokens_file or settings.oidc.audience)
    users = UserAccounts(settings.data_dir)
    provider = Provider(settings.oidc) if settings.oidc.client_id else None
    async with (
        run_in_background(prepare_page(dependencies), "page"),
        http_server(
            settings.web,
            dependencies,
            bearers,
            configured=configured,
            accounts=users,
            provider=provider,
            limits=ServerLimits(grace_seconds=settings.grpc.grace_seconds),
            trackers=settings.trackers,
        ) as served,
    ):
        yield served


@asynccontextmanager
async def send_webhooks(settings: Settings, bus: Bus) -> AsyncIterator[None]:
    """Send each decision to the webhook in the settings until the block ends. One of several
    processes sends. Raises `ConfigurationError`.
    """
    if settings.webhook.url is None:
        yield
        return
    from moothall.api.webhooks import open_webhooks

    async with open_webhooks(bus, settings.webhook) as webhooks:

        async def send() -> None:
            await webhooks.deliver_events((await bus.state(EVENTS.name)).last_seq)

        work = send() if settings.bus.url is None else lease_of(bus, "webhook").lead(send)
        async with run_in_background(work, "webhook"):
            yield


@asynccontextmanager
async def serve_metrics(
    settings: MetricsSettings,
    bus: Bus,
    count_active: Callable[[], int],
    refresh: Callable[[], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve the metrics of this process and those that hosts report. Yields the port, or 0 if
    disabled. `refresh` updates, before each response, the metrics that are not counted.
    """
    if not settings.enabled:
        yield 0
        return
    from moothall.api.http.server import serve_metrics

    def update_active_count() -> None:
        metrics.COLLECTOR_UNDER_WAY.set(count_active())

    reports = aggregation.Reports(aggregation.REPORT_SECONDS)

    async def listen() -> None:
        async for data in bus.signals(Channel.FIGURES.all):
            reports.add(data)

    async with AsyncExitStack() as stack:
        stack.enter_context(aggregation.watch())
        stack.enter_context(metrics.REGISTRY.before_snapshot(update_active_count))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        listening = group.create_task(listen(), name="reports")
        stack.callback(listening.cancel)
        yield await stack.enter_async_context(
            serve_metrics(settings, lambda: reports.snapshots("serve"), refresh)
        )
