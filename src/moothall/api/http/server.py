"""The HTTP servers: one ASGI application for the APIs and the web page, and the metrics endpoint
for Prometheus, each with its address.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from moothall import config, telemetry
from moothall.api.accounts import UserAccounts
from moothall.api.dependencies import ApiDependencies
from moothall.api.grpc_server import Service, services_of
from moothall.api.http.asgi import (
    ListenAddress,
    ServerLimits,
    answer_errors,
    authenticate,
    cancel_on_disconnect,
    check_origin,
    host_name,
    not_served,
    observe,
    serve_asgi,
    wants_page,
)
from moothall.api.http.documents import (
    JSON,
    HttpOperation,
    document,
    lines,
    message,
    openapi,
    to_json,
)
from moothall.api.http.routes import (
    A2A_PATH,
    AGENT_CARD_PATH,
    OPEN_PATHS,
    state_routes,
    tool_routes,
)
from moothall.api.http.stories import story_operations
from moothall.api.identity import BearerTokens, Caller, is_loopback
from moothall.api.web.routes import page_routes
from moothall.api.web.sessions import Sessions
from moothall.api.web.sign_in import Provider
from moothall.api.webhooks import tracker_routes
from moothall.domain.ids import LOCAL
from moothall.errors import ConfigurationError, Temporary
from moothall.telemetry.metrics import REGISTRY, AnyMetric, Histogram, Snapshot

if TYPE_CHECKING:
    from moothall.api.http.a2a import AgentEndpoints


log = telemetry.get_logger(__name__)

DEFAULT_PORT = 8080
LINK_SECONDS = 600.0
"""How long the link that `serve` prints can sign in a browser, once."""
_MAX_SESSIONS = 256
"""Signed-in browsers, and as many again by password; the oldest session ends if there are more."""
_SESSION_SECONDS = 12 * 3600.0  # of a browser's sign-in
_LIMITS, _NO_TRACKERS = ServerLimits(), config.TrackerSettings()


@dataclass(frozen=True, slots=True)
class Served:
    """A listening HTTP server. `link` signs a browser in once, as the owner of this machine's
    token; empty if there is no such token.
    """

    port: int
    link: str = ""


@asynccontextmanager
async def http_server(
    settings: config.WebSettings,
    dependencies: ApiDependencies,
    bearers: BearerTokens,
    *,
    configured: bool,
    accounts: UserAccounts | None = None,
    provider: Provider | None = None,
    limits: ServerLimits = _LIMITS,
    trackers: config.TrackerSettings = _NO_TRACKERS,
) -> AsyncIterator[Served]:
    """Serve until the context ends. Yields the address, with port 0, after a log message, if the
    default port is taken. `accounts` sign in with passwords, others at a `provider`.

    `configured`: the tokens are the operator's, not the one created at the first start. Raises
    `ConfigurationError` for a configured port that is taken, for anything but loopback without TLS
    and configured tokens, and for an invalid provider.
    """
    context = tls_context(settings, configured=configured)
    if provider is not None:
        await _check_provider(provider, settings)
    address = ListenAddress("HTTP", "web", settings.host, settings.port, DEFAULT_PORT)
    sessions = Sessions(
        _MAX_SESSIONS,
        _SESSION_SECONDS,
        LINK_SECONDS,
        accounts=accounts,
        provider_name=provider.name if provider else "",
    )
    async with serve_asgi(
        application(
            settings,
            dependencies,
            bearers,
            sessions,
            provider,
            limits=limits,
            trackers=trackers,
        ),
        address,
        limits,
        context,
    ) as port:
        is_local = context is None and is_loopback(settings.host) and bearers.accept(LOCAL)
        has_link = port and is_local and "page" in dependencies.serving.roles
        link = (
            f"http://{settings.host}:{port}/sign-in?link={sessions.link(Caller(LOCAL))}"
            if has_link
            else ""
        )
        try:
            yield Served(port, link)
        finally:
            dependencies.serving.stopping.set()


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    service: str,
    settings: config.WebSettings,
    bearers: BearerTokens,
    context: ssl.SSLContext | None,
    *,
    limits: ServerLimits = _LIMITS,
) -> AsyncIterator[int]:
    """Serve another application, which `service` names in messages, behind this server's checks:
    tokens, Host and Origin. Yields the port. Raises `ConfigurationError` if the port is taken.
    """
    checked = authenticate(app, bearers, lambda _scope: False)
    checked = check_origin(checked, settings.host, settings.hosts)
    checked = answer_errors(checked, limits.calls, limits.readers)
    address = ListenAddress(service, "web", settings.host, settings.port, DEFAULT_PORT)
    async with serve_asgi(checked, address, limits, context) as port:
        yield port


async def _check_provider(provider: Provider, settings: config.WebSettings) -> None:
    """Raise `ConfigurationError` for an invalid provider. An unreachable one is only logged."""
    if not provider.settings.url and not is_loopback(settings.host):
        raise ConfigurationError(
            f"web.host {settings.host} is not a loopback address: set oidc.url, where browsers "
            "find the page"
        )
    try:
        await provider.check()
    except Temporary as error:
        log.warning(
            "the provider is unreachable; sign-in through it does not work now",
            setting="oidc.issuer",
            reason=error.message,
        )


def application(
    settings: config.WebSettings,
    dependencies: ApiDependencies,
    bearers: BearerTokens,
    sessions: Sessions,
    provider: Provider | None = None,
    *,
    limits: ServerLimits = _LIMITS,
    trackers: config.TrackerSettings = _NO_TRACKERS,
) -> Starlette:
    """Return the ASGI application: the routes behind their middleware, outermost first."""
    pages = (
        page_routes(dependencies, bearers, sessions, provider)
        if "page" in dependencies.serving.roles
        else []
    )
    links = [_links(sessions, bearers)] if pages else []
    operations = story_operations(dependencies) if "api" in dependencies.serving.roles else []
    stories = [*(operation.route for operation in operations), _openapi_route(operations)]
    hooks = tracker_routes(dependencies, trackers)
    routes = [
        *hooks,
        *state_routes(dependencies),
        *tool_routes(dependencies),
        *stories,
        *_agent_routes(dependencies),
        *links,
        *rpc_routes(services_of(dependencies)),
        *pages,
    ]

    def is_open(scope: Scope) -> bool:
        """Return whether a path needs no token: open paths, signed webhooks, pages (which need a
        session), and unknown paths requested by a browser.
        """
        if scope["path"] in OPEN_PATHS or any(
            route.matches(scope)[0] is not Match.NONE for route in (*hooks, *pages)
        ):
            return True
        return wants_page(scope) and all(route.matches(scope)[0] is Match.NONE for route in routes)

    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(observe, routes),
            Middleware(answer_errors, limits.calls, limits.readers),
            Middleware(check_origin, settings.host, settings.hosts),
            Middleware(authenticate, bearers, is_open),
            Middleware(cancel_on_disconnect),
        ],
        exception_handlers={HTTPException: not_served},
    )
    app.router.redirect_slashes = False
    app.state.limits = limits
    return app


def _links(sessions: Sessions, bearers: BearerTokens) -> Route:
    async def link(request: Request) -> Response:
        """Return a path at which a browser is signed in once as the caller; `moothall open` opens
        it.
        """
        principal = await bearers.find(request.headers.getlist("authorization"))
        return document({"path": f"/sign-in?link={sessions.link(principal)}"}, 201)

    return Route("/api/v1/sign-in-links", link, methods=["POST"])


def _agent_routes(dependencies: ApiDependencies) -> Sequence[Route]:
    """Return the routes for agents that speak A2A; none without the extra `a2a`, whose library is
    imported by the first request, because that takes half a second.
    """
    if "api" not in dependencies.serving.roles or find_spec("a2a") is None:
        return []

    @cache
    def endpoints() -> AgentEndpoints:
        from moothall.api.http.a2a import AgentEndpoints

        return AgentEndpoints(dependencies.deliberations, dependencies.records.tasks)

    async def card(request: Request) -> Response:
        return await (await asyncio.to_thread(endpoints)).card(request)

    async def call(request: Request) -> Response:
        return await (await asyncio.to_thread(endpoints)).call(request)

    return [Route(AGENT_CARD_PATH, card), Route(A2A_PATH, call, methods=["POST"])]


def _openapi_route(operations: Sequence[HttpOperation]) -> Route:
    schema = cache(lambda: openapi(operations))  # at the first request: it takes milliseconds

    async def describe(_request: Request) -> Response:
        return document(schema())

    return Route("/openapi.json", describe)


def tls_context(settings: config.WebSettings, *, configured: bool) -> ssl.SSLContext | None:
    """Return the TLS context, or None for plain text on loopback.

    `configured`: tokens are set up, rather than created at the first start. Raises
    `ConfigurationError` for a non-loopback address without TLS or without such tokens.
    """
    if not is_loopback(settings.host) and not configured:
        raise ConfigurationError(
            f"web.host {settings.host} is not a loopback address: set grpc.token, "
            "grpc.tokens_file or oidc.audience"
        )
    if settings.tls_cert is None and settings.tls_key is None:
        if not is_loopback(settings.host):
            raise ConfigurationError(
                f"web.host {settings.host} is not a loopback address: set web.tls_cert and "
                "web.tls_key, or bind 127.0.0.1"
            )
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigurationError(
            "web.tls_cert and web.tls_key belong together; only one of them is set"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            f"web.tls_cert and web.tls_key are not a PEM certificate and its key: {error}"
        ) from error
    return context


def rpc_routes(services: Iterable[Service]) -> list[Route]:
    """Return a route for every method; its servicer is that of the gRPC server."""
    return [
        Route(
            f"/{service.descriptor.full_name}/{method.name}",
            _route(
                getattr(service.servicer, method.name),
                GetMessageClass(method.input_type),
                stream=method.server_streaming,
            ),
            methods=["POST"],
        )
        for service in services
        for method in service.descriptor.methods
    ]


def _route(method: Any, kind: type[Message], *, stream: bool) -> Callable[[Request], Any]:
    async def respond_once(request: Request) -> Response:
        return Response(to_json(await method(await message(request, kind), None)), media_type=JSON)

    async def respond_lines(request: Request) -> Response:
        return await lines(method(await message(request, kind), None), to_json)

    return respond_lines if stream else respond_once


# The metrics endpoint for Prometheus.


_METRICS_PORT = 9464
_MEASURE_TIMEOUT_SECONDS = 3.0

Snapshots = Callable[[], Mapping[str, Snapshot]]


@asynccontextmanager
async def serve_metrics(
    settings: config.MetricsSettings,
    snapshots: Snapshots,
    measure: Callable[[], Awaitable[None]],
    *,
    measure_seconds: float = _MEASURE_TIMEOUT_SECONDS,
) -> AsyncIterator[int]:
    """Serve `/metrics` until the context ends. Yields the port; 0, after a log message, if the
    default port is taken.

    `measure` updates the metrics that are not counted by events, before each response and for at
    most `measure_seconds`. Raises `ConfigurationError` for a configured port that is taken, and for
    a non-loopback address without a token.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"metrics.host {settings.host} is not a loopback address: set metrics.token "
            "(MOOTHALL_METRICS__TOKEN), or bind 127.0.0.1"
        )

    async def answer(request: Request) -> Response:
        host_header = request.headers.get("host", "")
        if is_loopback(settings.host) and not is_loopback(
            host_name(host_header)
        ):  # DNS rebinding by a foreign page
            return PlainTextResponse("the Host header is not a name of this server\n", 403)
        if settings.token is not None and not _has_token(
            request, settings.token.get_secret_value()
        ):
            return PlainTextResponse(
                "a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"}
            )
        try:
            async with asyncio.timeout(measure_seconds):
                await measure()
        except TimeoutError:
            log.info("bus or model servers did not report in time; their last metrics are served")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        page = encode(cast("CollectorRegistry", _Families(snapshots())))
        return Response(page, headers={"Content-Type": content_type})

    address = ListenAddress("figures", "metrics", settings.host, settings.port, _METRICS_PORT)
    async with serve_asgi(
        Starlette(routes=[Route("/metrics", answer)]), address, ServerLimits(connections=100)
    ) as port:
        yield port


def _has_token(request: Request, token: str) -> bool:
    scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        sent_token.strip().encode(), token.encode()
    )


class _Families:
    """Snapshots as Prometheus's client library expects them: each metric once, with its process as
    the last label.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Yield a family for every metric, also for those without a value."""
        for name, figure in REGISTRY.figures.items():
            yield _family(
                figure,
                {process: snapshot.get(name, []) for process, snapshot in self._snapshots.items()},
            )


def _family(figure: AnyMetric, rows: Mapping[str, list[list[Any]]]) -> Metric:
    labels = [*figure.labels, "process"]
    samples = [
        ([*values, process], value)
        for process, process_rows in rows.items()
        for values, value in process_rows
    ]
    if isinstance(figure, Histogram):
        histogram = HistogramMetricFamily(figure.name, figure.about, labels=labels)
        bounds = [*map(str, figure.buckets), "+Inf"]
        for values, (*counts, total) in samples:
            histogram.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
        return histogram
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = kind(figure.name.removesuffix("_total"), figure.about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
