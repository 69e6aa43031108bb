"""The HTTP server: one ASGI application and its address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from moothall import config, telemetry
from moothall.api.accounts import UserAccounts
from moothall.api.asgi import ListenAddress, ServerLimits, serve_asgi
from moothall.api.dependencies import ApiDependencies
from moothall.api.http import middleware
from moothall.api.http.documents import JSON, document, lines, message, to_json
from moothall.api.http.openapi import HttpOperation, openapi
from moothall.api.http.routes import (
    A2A_PATH,
    AGENT_CARD_PATH,
    OPEN_PATHS,
    state_routes,
    tool_routes,
)
from moothall.api.http.stories import story_operations
from moothall.api.http.trackers import tracker_routes
from moothall.api.identity import BearerTokens, Caller, is_loopback
from moothall.api.protos import Service, services_of
from moothall.api.web.routes import page_routes
from moothall.api.web.sessions import Sessions
from moothall.api.web.sign_in import Provider
from moothall.domain.identity import LOCAL
from moothall.errors import ConfigurationError, Temporary

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
    checked = middleware.authenticate(app, bearers, lambda _scope: False)
    checked = middleware.check_origin(checked, settings.host, settings.hosts)
    checked = middleware.answer_errors(checked, limits.calls, limits.readers)
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
        return middleware.wants_page(scope) and all(
            route.matches(scope)[0] is Match.NONE for route in routes
        )

    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(middleware.observe, routes),
            Middleware(middleware.answer_errors, limits.calls, limits.readers),
            Middleware(middleware.check_origin, settings.host, settings.hosts),
            Middleware(middleware.authenticate, bearers, is_open),
            Middleware(middleware.cancel_on_disconnect),
        ],
        exception_handlers={HTTPException: middleware.not_served},
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
