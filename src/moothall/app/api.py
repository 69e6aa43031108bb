"""The doors of a server, as the settings want them: gRPC, HTTP, and the page of figures."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from moothall.api.bundles import BUCKET as BUNDLES
from moothall.api.bundles import Bundles
from moothall.api.dependencies import ApiDependencies
from moothall.api.grpc_server import grpc_server
from moothall.api.health import HealthCheck, Probe
from moothall.api.http.server import Served, http_server
from moothall.api.identity import read_tokens
from moothall.api.web.oidc import Provider
from moothall.api.web.user_accounts import UserAccounts
from moothall.app.bus import Bus, ReportProgress, alone, lease_of, watch_log
from moothall.app.graph import Answers
from moothall.app.repositories import trusted_repositories
from moothall.app.rules import open_rules
from moothall.app.tool_sessions import (
    WRITER,
    agent_service,
    execution_service,
    tool_service,
    workflow_service,
)
from moothall.authorization.recent_decisions import Decisions
from moothall.authorization.rules import Rules
from moothall.authorization.story_budgets import BUCKET, StoryBudgets
from moothall.collector import Collector
from moothall.collector.observer import Observer
from moothall.collector.overview import Overview
from moothall.collector.statistics import Statistics
from moothall.concurrency import beside, enter_beside, say_if_slow
from moothall.config import MetricsSettings, Models, Settings, secret_values
from moothall.config.models import DEFAULT
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.identity import Principal
from moothall.domain.secrets import scrub
from moothall.domain.status import Condition
from moothall.domain.topic import Channel
from moothall.errors import ModelUnavailable, Temporary
from moothall.events.registry import EVENTS
from moothall.llm.health import look
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.service import DeliberationService
from moothall.orchestrator.story_writer import StoryWriter
from moothall.sandbox.probe import Layer
from moothall.stories.board import Board
from moothall.stories.executor import StoryExecutor
from moothall.stories.notes import Notes
from moothall.stories.planner import Planner
from moothall.telemetry import aggregation, metrics
from moothall.tool_sessions.deferred_open import of_tasks
from moothall.workers.in_process import Alive

Found = tuple[Condition, str]


def checkup(
    models: Models,
    *,
    bus: Bus,
    model_url: str,
    graph: Answers,
    alive: Alive,
    walls: Sequence[Layer],
) -> HealthCheck:
    """Return what looks at all parts. The graph is behind the answers: nothing waits for it."""

    async def see_bus() -> Found:
        state = await bus.state(EVENTS.name)
        return Condition.HEALTHY, f"{state.messages} events, the last is {state.last_seq}"

    async def see_model() -> Found:
        seen = await look(models, model_url)
        wrong = next((one.wrong for one in seen.values() if one.wrong), "")
        if not any(seen[name].answering for name in models.chain("")):
            raise ModelUnavailable(seen[DEFAULT].wrong)
        told = [
            f"{one.answering} of {one.there} servers answer"
            + (f" as {name}" if models.named else "")
            for name, one in seen.items()
        ]
        return (
            (Condition.DEGRADED, "; ".join((*told, wrong)))
            if wrong
            else (Condition.HEALTHY, "; ".join(told))
        )

    async def see_graph() -> Found:
        return Condition.HEALTHY, f"written up to event {await graph.position()}"

    async def see_fleet() -> Found:
        answering, there = await alive()
        if not answering:
            raise Temporary(f"none of {there} hosts answers")
        return (
            Condition.HEALTHY if answering == there else Condition.DEGRADED,
            f"{answering} of {there} hosts are at work",
        )

    async def see_sandbox() -> Found:
        missing = [layer.name for layer in walls if not layer.ok]
        if missing:
            return Condition.DEGRADED, f"missing, as allowed: {', '.join(missing)}"
        return Condition.HEALTHY, f"all {len(walls)} layers hold"

    return HealthCheck(
        {
            "bus": Probe(see_bus),
            **({"model": Probe(see_model)} if model_url else {}),
            "fleet": Probe(see_fleet),
            **({"sandbox": Probe(see_sandbox)} if walls else {}),
            "graph": Probe(see_graph, needed=False),
        }
    )


@dataclass(frozen=True, slots=True)
class ApiInputs:
    """What the doors lead to."""

    bus: Bus
    deliberations: DeliberationService
    council_registry: CouncilRegistry
    collector: Collector | Observer
    graph: Answers
    alive: Alive
    walls: Sequence[Layer]
    model_url: str
    briefed: Callable[[Rules], Briefings]
    roles: frozenset[str]
    instance: str
    """What no other process on the bus is called; empty where there is none."""


@dataclass(frozen=True, slots=True)
class ListeningPorts:
    """Where the doors are. 0: there is none."""

    grpc: int = 0
    http: int = 0
    metrics: int = 0
    link: str = ""


@asynccontextmanager
async def open_doors(
    settings: Settings, behind: ApiInputs, report_progress: ReportProgress
) -> AsyncIterator[ListeningPorts]:
    """Serve until the context ends. Raises `ConfigurationError`."""
    bus, deliberations = behind.bus, behind.deliberations

    async def see() -> None:
        await asyncio.gather(
            bus.measure(), *([look(settings.choice, behind.model_url)] if behind.model_url else [])
        )

    async with AsyncExitStack() as stack:
        metrics = await enter_beside(
            stack, figures(settings.metrics, bus, lambda: behind.collector.active_count, see)
        )
        planner = Planner(bus, settings.limits, deliberations.check)
        architects = (
            settings.limits.architects if settings.llm.base_url is not None else 0
        )  # the small model divides nothing well
        if "collector" in behind.roles:
            checking = beside(
                watch_log(settings.data_dir, settings.bus.check_seconds, bus, report_progress),
                "log-check",
            )
            await enter_beside(stack, checking)
            await enter_beside(stack, send_webhooks(settings, bus))
        if "planning" in behind.roles:
            land, turns = (
                trusted_repositories(settings).land,
                functools.partial(alone, settings, bus),
            )
            work = StoryExecutor(
                bus,
                deliberations,
                settings.limits,
                planner,
                land,
                architects=architects,
                alone=turns,
            )
            await enter_beside(stack, beside(work.run(), "planner"))
        rules = await enter_beside(stack, open_rules(settings, bus))
        visits, workflows = None, None
        if "tools" in behind.roles:
            if settings.bus.url is not None:
                # Workspaces and workflows are one process's: a second would take up what the first
                # is at.
                with say_if_slow(report_progress, "the process that has the role tools to end"):
                    await enter_beside(stack, alone(settings, bus, "tools"))
            writer = f"{WRITER}-{behind.instance}" if behind.instance else WRITER
            visits = await enter_beside(stack, tool_service(settings, bus, rules, writer))
            workflows = await enter_beside(stack, workflow_service(settings.guard, bus, visits))
            visits.await_calls(of_tasks(deliberations))
        dependencies = ApiDependencies(
            deliberations=deliberations,
            councils=behind.council_registry,
            plans=planner,
            board=Board(bus),
            accounts=StoryBudgets(bus.bucket(BUCKET), settings.limits),
            author=StoryWriter(
                deliberations,
                settings.limits.coach_seconds,
                model=settings.llm.base_url is not None,
            ),
            tallies=Statistics(bus, behind.council_registry, behind.collector.deliberations),
            briefings=behind.briefed(rules),
            ask=behind.graph.ask,
            models=settings.choice,
            notes=Notes(bus, functools.partial(scrub, known=secret_values(settings))),
            bundles=Bundles(bus.bucket(BUNDLES)),
            visits=visits,
            executions=execution_service(settings.runner, visits) if visits else None,
            parking=rules.parking,
            workflows=workflows,
            agents=agent_service(settings, bus, deliberations, visits) if visits else None,
            decisions=Decisions(bus),
            tasks=Overview(bus, behind.collector.states),
            repositories=trusted_repositories(settings),
            served=behind.roles & {"api", "page"},
            checkup=checkup(
                settings.choice,
                bus=bus,
                model_url=behind.model_url,
                graph=behind.graph,
                alive=behind.alive,
                walls=behind.walls,
            ),
        )
        tokens = read_tokens(settings.grpc, settings.data_dir)
        http = await stack.enter_async_context(_serve_http(settings, dependencies, tokens))
        server = await stack.enter_async_context(
            grpc_server(
                settings.grpc, settings.limits, dependencies, tokens, settings.serve.leave_seconds
            )
        )
        yield ListeningPorts(server.port, http.port, metrics, http.link)


@asynccontextmanager
async def _serve_http(
    settings: Settings, dependencies: ApiDependencies, tokens: Mapping[str, Principal]
) -> AsyncIterator[Served]:
    """Serve HTTP; yields where, with port 0 where none is served. Raises `ConfigurationError`."""
    if not settings.web.enabled:
        yield Served(0)
        return

    configured = settings.grpc.token is not None or settings.grpc.tokens_file is not None
    people = UserAccounts(settings.data_dir)
    provider = Provider(settings.oidc) if settings.oidc.issuer else None
    async with http_server(
        settings.web, dependencies, tokens, configured=configured, people=people, provider=provider
    ) as served:
        yield served


@asynccontextmanager
async def send_webhooks(settings: Settings, bus: Bus) -> AsyncIterator[None]:
    """Tell the server of the settings, if any, of each decision, until the block ends; of several
    processes one does. Raises `ConfigurationError`.
    """
    if settings.webhook.url is None:
        yield
        return
    from moothall.api.webhooks import open_webhooks

    async with open_webhooks(bus, settings.webhook) as webhooks:

        async def send() -> None:
            await webhooks.run((await bus.state(EVENTS.name)).last_seq)

        work = (
            send()
            if settings.bus.url is None
            else lease_of(settings.serve, bus, "webhook").lead(send)
        )
        async with beside(work, "webhook"):
            yield


@asynccontextmanager
async def figures(
    settings: MetricsSettings,
    bus: Bus,
    under_way: Callable[[], int],
    see: Callable[[], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve this process's figures and those that hosts report; yields the port, 0 where none is
    served. `see` looks, before each answer, at what nobody counts.
    """
    if not settings.enabled:
        yield 0
        return
    from moothall.api.prometheus import figures_page

    def look() -> None:
        metrics.COLLECTOR_UNDER_WAY.set(under_way())

    known = aggregation.Reports(settings.report_seconds)

    async def listen() -> None:
        async for data in bus.signals(Channel.FIGURES.all):
            known.take(data)

    async with AsyncExitStack() as stack:
        stack.enter_context(aggregation.watch())
        stack.enter_context(metrics.REGISTRY.looking(look))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        listening = group.create_task(listen(), name="reports")
        stack.callback(listening.cancel)
        yield await stack.enter_async_context(
            figures_page(settings, lambda: known.snapshots("serve"), see)
        )
