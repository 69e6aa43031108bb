"""A gRPC server on a free port in front of an in-memory deliberation service, and a client that
carries a token.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import grpc.aio

from moothall import config
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
from moothall.api.grpc_server import Server, grpc_server
from moothall.api.identity import BearerTokens
from moothall.authorization.audit import Decisions
from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
from moothall.collector.overview import Overview
from moothall.collector.statistics import Statistics
from moothall.config.limits import QuotaSettings
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.ids import LOCAL, Principal
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.story_writer import StoryWriter
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from moothall.stories.board import Board
from moothall.stories.notes import Notes
from moothall.stories.planner import Planner
from moothall.testing.bus import MemoryBus
from support.deliberation_service import MemoryDeliberations
from support.graph import MemoryGraph

TOKEN = "a-token-of-the-tests"
_LAST_WORDS_SECONDS = 5
OTHER = "a-token-of-another-tenant"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - refused, or behind TLS on a free port
TOKENS = {TOKEN: LOCAL, OTHER: Principal("eve", "elsewhere")}


class Client:
    """A stub whose calls carry a token and time out after 20 seconds."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = TOKEN) -> None:
        self._stub = cast("Any", pb_grpc.OrchestratorServiceStub(channel))
        self.metadata = [("authorization", f"Bearer {token}")] if token is not None else []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda request, **options: method(
            request, **({"metadata": self.metadata, "timeout": 20} | options)
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """A server and a client."""

    server: Server
    channel: grpc.aio.Channel
    client: Client


def certificate(folder: Path) -> dict[str, Any]:
    """Create a certificate and its key for localhost and `EVERYWHERE`; return the settings that
    name them.
    """
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{EVERYWHERE}"]
    subprocess.run(
        [*command, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return {"tls_key": key, "tls_cert": cert}


def api_dependencies(
    deliberations: MemoryDeliberations,
    bus: MemoryBus | None = None,
    graph: MemoryGraph | None = None,
    checkup: HealthCheck | None = None,
) -> ApiDependencies:
    """Return a server's dependencies without the role `tools`: the real ones on an in-memory bus,
    and the deliberation service.
    """
    bus, graph = bus or MemoryBus(), graph or MemoryGraph()
    limits = config.LimitSettings()
    models = config.Models.of(
        config.LlmSettings(model="scripted"),
        {"large": config.LlmSettings(model="deep", tier="large")},
    )
    council_registry = CouncilRegistry(bus, limits, models)
    return ApiDependencies(
        deliberations=deliberations,
        councils=council_registry,
        stories=StoryServices(
            Board(bus),
            Planner(bus, limits, deliberations.check),
            StoryWriter(deliberations, 1, model=False),
            StoryBudgets(bus.bucket(BUCKET), limits),
        ),
        records=Records(
            Overview(bus, tuple),
            Statistics(bus, council_registry, deliberations.under_way),
            Decisions(bus),
        ),
        context=ContextServices(
            Briefings(graph.ask, limits), graph.ask, Notes(bus), Bundles(bus.bucket(BUNDLES))
        ),
        tools=ToolServices(),
        quotas=Quotas(bus.bucket(BUCKET), QuotaSettings()),
        health_check=checkup or HealthCheck({}),
        models=models,
        serving=ServingState(frozenset({"api", "page"})),
    )


def with_parts(dependencies: ApiDependencies, **parts: Any) -> ApiDependencies:
    """Return the dependencies with other parts, by the names that they have in their groups."""
    groups: dict[str, Any] = {}
    for group in ("stories", "records", "context", "tools", "serving"):
        value = cast("Any", getattr(dependencies, group))
        names = {item.name for item in fields(value)} & parts.keys()
        if names:
            groups[group] = replace(value, **{name: parts.pop(name) for name in names})
    return replace(dependencies, **groups, **parts)


@asynccontextmanager
async def serving(
    deliberations: MemoryDeliberations,
    dependencies: ApiDependencies | None = None,
    *,
    accept_seconds: float = 0.0,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """Serve the deliberation service, and other dependencies if given, until the context ends."""
    grpc_settings = config.GrpcSettings(**({"port": 0, "grace_seconds": 0.2} | settings))
    async with (
        AsyncExitStack() as callers,
        grpc_server(
            grpc_settings,
            dependencies or api_dependencies(deliberations),
            BearerTokens(TOKENS),
            accept_seconds=accept_seconds,
        ) as server,
    ):
        # The caller outlives the server, so that its shutdown is visible: the last sent data may
        # still be in transit.
        channel = grpc.aio.insecure_channel(server.target)
        callers.push_async_callback(channel.close, _LAST_WORDS_SECONDS)
        yield Serving(server, channel, Client(channel))
