"""The processes of a lane: `python -m support.recovery.parts serve|collector|host|model`.

Each closes its resources at SIGTERM and ends. Settings come from the environment, as everywhere.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from moothall.config import Settings
from moothall.settings import load_settings


async def serve() -> None:
    """Serve the gRPC API in front of a deliberation service, with the other packages that it
    needs.
    """
    from moothall.api.dependencies import BUCKET as BUNDLES
    from moothall.api.dependencies import (
        ApiDependencies,
        Bundles,
        ContextServices,
        HealthCheck,
        Records,
        ServingState,
        StoryServices,
        ToolServices,
    )
    from moothall.api.grpc_server import grpc_server
    from moothall.api.identity import BearerTokens, read_tokens
    from moothall.app.repositories import trusted_repositories
    from moothall.authorization.audit import Decisions
    from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
    from moothall.collector.overview import Overview
    from moothall.collector.statistics import Statistics
    from moothall.deliberation.prompts.briefing import Briefings
    from moothall.events.nats.jetstream import open_bus
    from moothall.orchestrator.council_registry import CouncilRegistry
    from moothall.orchestrator.request_planning import Defaults
    from moothall.orchestrator.service import DeliberationService
    from moothall.orchestrator.story_writer import StoryWriter
    from moothall.stories.board import Board
    from moothall.stories.notes import Notes
    from moothall.stories.planner import Planner
    from support.graph import MemoryGraph

    settings = load_settings()
    async with open_bus(settings.bus, _bus(settings)) as bus:
        deliberations = DeliberationService(
            bus,
            trusted_repositories(settings),
            Defaults(settings.limits, settings.repository),
        )
        council_registry = CouncilRegistry(bus, settings.limits, settings.choice)
        graph = MemoryGraph()
        dependencies = ApiDependencies(
            deliberations=deliberations,
            councils=council_registry,
            stories=StoryServices(
                Board(bus),
                Planner(bus, settings.limits),
                StoryWriter(deliberations, 1, model=False),
                StoryBudgets(bus.bucket(BUCKET), settings.limits),
            ),
            records=Records(
                Overview(bus, tuple), Statistics(bus, council_registry, tuple), Decisions(bus)
            ),
            context=ContextServices(
                Briefings(graph.ask, settings.limits),
                graph.ask,
                Notes(bus),
                Bundles(bus.bucket(BUNDLES)),
            ),
            tools=ToolServices(),
            quotas=Quotas(bus.bucket(BUCKET), settings.quotas),
            health_check=HealthCheck({}),
            models=settings.choice,
            serving=ServingState(frozenset({"api"})),
        )
        bearers = BearerTokens(read_tokens(settings.grpc, settings.data_dir))
        async with grpc_server(settings.grpc, dependencies, bearers):
            await asyncio.Event().wait()


async def collector() -> None:
    """Run the collector."""
    from moothall.app.repositories import trusted_repositories
    from moothall.collector.collector import Collector
    from moothall.events.nats.jetstream import open_bus

    settings = load_settings()
    async with open_bus(settings.bus, _bus(settings)) as bus:
        await Collector(bus, trusted_repositories(settings)).run()


async def host(name: str) -> None:
    """Run a host, without the Ray actor around it."""
    from moothall.app.host import host_main
    from moothall.workers.owner import Process

    settings = load_settings()
    no_process = Process(0, 0, "")  # each part is killed separately
    await host_main(
        name,
        lambda: None,
        app=no_process,
        settings=settings,
        bus_url=_bus(settings),
        model_url=settings.llm.base_url or "",
    )


async def model(port: str, journal: str) -> None:
    """Run a scripted model server. Its journal has a line for each received call: time and
    call id.
    """
    from moothall.testing.model import Fault, phase_of, scripted_model
    from support.recovery.scene import HANGING, scripted_reply

    with Path(journal).open("a", encoding="utf-8", buffering=1) as lines:

        def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
            lines.write(json.dumps([time.time(), headers.get("X-Request-Id", "")]) + "\n")
            hangs = HANGING in str(body["messages"]) and phase_of(headers) == "propose"
            return Fault("silent") if hangs else scripted_reply(body, headers)

        async with scripted_model(answer, port=int(port)):
            await asyncio.Event().wait()


def _bus(settings: Settings) -> str:
    return settings.bus.url or ""


async def _run_until_terminated(part: Coroutine[Any, Any, None]) -> None:
    """Run a part until SIGTERM."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(part)
        loop.add_signal_handler(signal.SIGTERM, task.cancel)


if __name__ == "__main__":
    parts: Mapping[str, Any] = {
        "serve": serve,
        "collector": collector,
        "host": host,
        "model": model,
    }
    with suppress(asyncio.CancelledError):
        asyncio.run(_run_until_terminated(parts[sys.argv[1]](*sys.argv[2:])))
