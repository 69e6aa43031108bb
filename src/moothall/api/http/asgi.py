"""The HTTP stack below the routes: an ASGI server on uvicorn's HTTP protocol, with limits for each
connection and a graceful stop; and the middleware of the HTTP API (authentication, host and origin
checks, error responses, tracing).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPMethod, HTTPStatus
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from moothall import errors, telemetry
from moothall.api.http.documents import EVENTS, HttpRefusal, problem
from moothall.api.identity import BearerTokens, call_as, is_loopback
from moothall.api.protobuf import RETRY_SECONDS, http_status_of
from moothall.api.web.sessions import error_page
from moothall.errors import ConfigurationError, MoothallError, RateLimited
from moothall.telemetry import metrics

# The server.


log = telemetry.get_logger(__name__)

MAX_BODY_BYTES = 4_000_000
_BACKLOG = 1024
_NO_LOGS = logging.CRITICAL + 1
_DRAIN_POLL_SECONDS = 0.02
_CLEANUP_SECONDS = 5.0
"""Time for requests that are cancelled when the server stops to clean up."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits for connections. `head_seconds` counts from the connection's start, or the first byte
    after a response, to the end of a request's head. `keep_seconds` is the idle time after a
    response. `stall_seconds` is how long a client may read nothing of a response. Applications
    limit bodies by `body_bytes` and `body_seconds`, streams of server-sent events by `readers`, and
    other requests by `calls`.
    """

    connections: int = 4096
    readers: int = 2000
    calls: int = 256
    head_bytes: int = 16_384
    head_seconds: float = 20.0
    keep_seconds: float = 75.0
    stall_seconds: float = 60.0
    grace_seconds: float = 1.0
    body_bytes: int = MAX_BODY_BYTES
    body_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address to listen on. `port` None means `default`; if that is taken, nothing is served.
    `service` and `section` name the service and its settings in messages.
    """

    service: str
    section: str
    host: str
    port: int | None
    default: int


class ClientConnection(HttpToolsProtocol):
    """A connection with limits that uvicorn does not have: for the size and duration of heads, and
    for clients that do not read their response.
    """

    def __init__(self, config: Config, state: ServerState, limits: ServerLimits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._timers: dict[str, TimerHandle] = {}
        self._idle = False
        self._in_head, self._head = True, 0

    def _set_timer(self, name: str, seconds: float | None) -> None:
        """Abort the connection after `seconds`; None cancels the timer `name`."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Start the head timer, or abort if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._set_timer("head", self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        for name in tuple(self._timers):
            self._set_timer(name, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and refuse a head that is too large."""
        if self._idle:
            self._idle = False
            self._set_timer("head", self._limits.head_seconds)
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if (
            self._in_head
            and self._head > self._limits.head_bytes
            and not self.transport.is_closing()
        ):
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        """Begin a request. A head that is too large is answered like invalid HTTP."""
        if (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > self._limits.head_bytes
        ):
            raise ValueError("the head is too large")
        self._in_head, self._head, self._idle = False, 0, False
        self._set_timer("head", None)
        self.server_state.default_headers[0] = (b"date", formatdate(usegmt=True).encode())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start to wait for the next request. All bytes that arrive now, also those of an unread
        body, must form a request in time.
        """
        super().on_response_complete()
        self._idle = self.cycle.response_complete  # otherwise a pipelined request is in progress

    def pause_writing(self) -> None:
        """Limit how long the client may read nothing, because the response stays in memory."""
        super().pause_writing()
        self._set_timer("answer", self._limits.stall_seconds)

    def resume_writing(self) -> None:
        """Cancel the timer of `pause_writing`."""
        super().resume_writing()
        self._set_timer("answer", None)


@asynccontextmanager
async def serve_asgi(
    app: ASGIApp,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve until the context ends. Yields the port; 0, after a log message, if the default port is
    taken.

    At the end, running requests get `limits.grace_seconds`. Raises `ConfigurationError` if a
    configured port cannot be bound. uvicorn's own server is not used because it takes over the
    process's signals, wakes ten times a second, and leaves cancelled tasks behind.
    """
    options: dict[str, Any] = {
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
        "reset_contextvars": True,
    }

    async def log_failures(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception:
            log.exception("an answer failed because of a bug", path=scope["path"])
            raise

    config = Config(
        log_failures,
        http=ClientConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=_NO_LOGS,  # uvicorn would log every client that disconnects
        timeout_keep_alive=round(limits.keep_seconds),
        **options,
    )
    config.load()
    _raise_file_limit(limits.connections)
    state = ServerState()
    state.default_headers = [(b"date", b""), (b"server", b"moothall")]
    server = await _listen(config, state, address, limits, context)
    try:
        yield server.sockets[0].getsockname()[1] if server else 0
    finally:
        if server:
            server.close()
        await _drain(state, limits.grace_seconds)


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of open files to twice the number of connections, as far as allowed."""
    import resource  # missing on Windows, which has no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 2 * connections if hard == resource.RLIM_INFINITY else min(hard, 2 * connections)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


async def _listen(
    config: Config,
    state: ServerState,
    address: ListenAddress,
    limits: ServerLimits,
    context: ssl.SSLContext | None,
) -> asyncio.Server | None:
    port = address.default if address.port is None else address.port
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(config, state, limits),
            address.host,
            port,
            ssl=context,
            ssl_handshake_timeout=limits.head_seconds if context else None,
            backlog=_BACKLOG,
        )
    except OSError as error:
        reason = error.strerror or error
        problem = f"{address.service} cannot be served on {address.host}:{port}: {reason}"
        setting = f"{address.section}.port"
        if address.port is not None:
            raise ConfigurationError(
                f"{problem}; choose another {setting}, or 0 for any free one"
            ) from error
        log.warning(
            "a default port is taken; set another one, or 0 for any",
            setting=setting,
            reason=problem,
        )
        return None


async def _drain(state: ServerState, grace_seconds: float) -> None:
    """Wait for running requests, then cancel the rest."""
    for connection in tuple(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_seconds):
            while state.tasks or state.connections:  # noqa: ASYNC110 - uvicorn has no event for this; connections still send their responses
                await asyncio.sleep(_DRAIN_POLL_SECONDS)
    late_tasks = set(state.tasks)
    for task in late_tasks:
        task.cancel()
    for connection in tuple(state.connections):
        connection.transport.abort()
    if late_tasks:
        await asyncio.wait(late_tasks, timeout=_CLEANUP_SECONDS)


# The middleware.


_OTHER_STATUS, _CLIENT_GONE = "other", "cancelled"
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
_METHODS = frozenset(HTTPMethod)
_DEFAULT_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""No response is cached, and no browser guesses its type, unless its handler sets the header."""


def answer_errors(app: ASGIApp, calls: int, readers: int) -> ASGIApp:
    """Turn errors into responses, and refuse more than `calls` requests at a time. Responses with
    server-sent events do not count as calls once they have begun, but as one of `readers`.
    """
    active_calls, active_readers = 0, 0

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal active_calls, active_readers
        if active_calls >= calls:
            refusal = problem(
                429, "RATE_LIMITED", f"{calls} requests are running; try again", RETRY_SECONDS
            )
            return await refusal(scope, receive, send)
        is_reader = False

        async def send_wrapper(message: Message) -> None:
            nonlocal active_calls, active_readers, is_reader
            if message["type"] == "http.response.start" and Headers(raw=message["headers"]).get(
                "content-type", ""
            ).startswith(EVENTS):
                if active_readers >= readers:
                    raise RateLimited(f"{readers} clients are reading events; try again")
                active_calls, active_readers, is_reader = active_calls - 1, active_readers + 1, True
            await send(message)

        active_calls += 1
        try:
            await app(scope, receive, send_wrapper)
        except Exception as error:  # noqa: BLE001 - the outermost handler; if a response has begun, uvicorn closes the connection
            await _response_for(scope, error)(scope, receive, send)
        finally:
            if is_reader:
                active_readers -= 1
            else:
                active_calls -= 1

    return answer


def _response_for(scope: Scope, error: Exception) -> Response:
    """Return the response for an error. A bug is logged; its text is not for callers."""
    match error:
        case HttpRefusal():
            return problem(error.status, error.code, error.message)
        case errors.MoothallError():
            retry_after = (
                (error.retry_after or RETRY_SECONDS)
                if isinstance(error, errors.Temporary)
                else None
            )
            return problem(http_status_of(error), error.code, error.message, retry_after)
        case _:
            log.error("a request failed because of a bug", path=scope["path"], exc_info=error)
            return problem(500, "INTERNAL", "internal error; see the server's log")


async def not_served(request: Request, error: Exception) -> Response:
    """Answer requests that match no route."""
    if not isinstance(error, HTTPException):
        raise TypeError(f"{type(error).__name__} is not a response of the routes") from error
    path, response_headers = request.url.path[:100], {}
    detail = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"there is nothing at {path}; docs/api.md lists the paths"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        matching = [
            route
            for route in request.app.routes
            if route.matches(request.scope)[0] is not Match.NONE
        ]  # one route for each method
        allowed = sorted({method for route in matching for method in route.methods or ()})
        detail = f"{path} allows {', '.join(allowed)}, not {request.method[:20]}"
        response_headers["Allow"] = ",".join(allowed)
    if request.method == "GET" and wants_page(request.scope):
        return error_page(error.status_code, detail)
    response = problem(error.status_code, _CODES.get(error.status_code, "INVALID_REQUEST"), detail)
    response.headers.update(response_headers)
    return response


def wants_page(scope: Scope) -> bool:
    """Return whether a browser requests a page for a person."""
    return "text/html" in Headers(scope=scope).get("accept", "")


def check_origin(app: ASGIApp, host: str, extra_hosts: Collection[str]) -> ASGIApp:
    """Refuse requests that foreign pages make a browser send: to this address under another host
    name (DNS rebinding), or from another origin. Names are checked only for loopback and with
    `extra_hosts`; other servers have TLS with a certificate for their names.
    """
    checks_names = is_loopback(host) or bool(extra_hosts)
    names = {name.lower() for name in (host.strip("[]"), *extra_hosts)}

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host_header, origins = ",".join(headers.getlist("host")), headers.getlist("origin")
        name = host_name(host_header)
        if checks_names and not (name in names or (is_loopback(host) and is_loopback(name))):
            raise HttpRefusal(
                403,
                "WRONG_HOST",
                f"{name[:80]!r} is not a name of this server; add names to web.hosts",
            )
        if any(
            origin.lower()
            not in {f"http://{host_header}".lower(), f"https://{host_header}".lower()}
            for origin in origins
        ):
            raise HttpRefusal(
                403, "WRONG_ORIGIN", f"requests from pages of {origins[0][:80]!r} are refused"
            )
        await app(scope, receive, send)

    return check


def host_name(host: str) -> str:
    """Return the host name of a Host header, without its port; '' if the header is missing."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def authenticate(app: ASGIApp, bearers: BearerTokens, is_open: Callable[[Scope], bool]) -> ASGIApp:
    """Set the principal of requests with a valid token. Paths for which `is_open` is true need
    none.
    """

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await bearers.find(Headers(scope=scope).getlist("authorization"))
        except MoothallError:
            if not is_open(scope):
                raise
            call_as(None)
        else:
            call_as(caller.principal)
        await app(scope, receive, send)

    return check


def cancel_on_disconnect(app: ASGIApp) -> ASGIApp:
    """Cancel a request and its work if its client disconnects."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request_task = asyncio.current_task()
        messages: asyncio.Queue[Message] = asyncio.Queue(
            1
        )  # read no more of a body than the handler consumes

        async def listen() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await messages.put(message)
            if request_task is not None:
                request_task.cancel()

        async def send_wrapper(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                # After a response, uvicorn always reports a disconnect.
                listener.cancel()
            await send(message)

        listener = asyncio.create_task(listen())
        try:
            await app(scope, messages.get, send_wrapper)
        finally:
            listener.cancel()

    return answer


def observe(app: ASGIApp, routes: Sequence[Route]) -> ASGIApp:
    """Wrap each request in a span, in the trace that its caller named, and count it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        traceparents = Headers(scope=scope).getlist("traceparent")
        route = next(
            (route.path for route in routes if route.matches(scope)[0] is Match.FULL), _OTHER_STATUS
        )
        method = scope["method"] if scope["method"] in _METHODS else _OTHER_STATUS
        attributes = {"http.request.method": method, "http.route": route}
        parent = traceparents[0] if len(traceparents) == 1 else ""
        start_time, status, is_done = perf_counter(), 0, False

        async def send_wrapper(message: Message) -> None:
            nonlocal status, is_done
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with (
            telemetry.span(f"{method} {route}", attributes, kind="server", parent=parent) as span,
            metrics.HTTP_REQUESTS_IN_FLIGHT.track_inprogress(),
        ):
            try:
                await app(scope, receive, send_wrapper)
                is_done = True
                span.set({"http.response.status_code": status})
                if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    span.fail(str(status))
            finally:
                metrics.HTTP_REQUESTS.add(route, str(status) if is_done else _CLIENT_GONE)
                metrics.HTTP_REQUEST_SECONDS.observe(perf_counter() - start_time, route)

    return answer
