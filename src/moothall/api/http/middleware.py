"""Middleware of the HTTP API: authentication, host and origin checks, error responses, tracing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from http import HTTPMethod, HTTPStatus
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moothall import errors, telemetry
from moothall.api.http.documents import EVENTS, HttpRefusal, problem
from moothall.api.identity import BearerTokens, call_as, is_loopback
from moothall.api.protobuf import RETRY_SECONDS, http_status_of
from moothall.api.web.sessions import error_page
from moothall.errors import MoothallError, RateLimited
from moothall.telemetry import metrics

log = telemetry.get_logger(__name__)

_OTHER, _CLIENT_GONE = "other", "cancelled"
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
            (route.path for route in routes if route.matches(scope)[0] is Match.FULL), _OTHER
        )
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
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
