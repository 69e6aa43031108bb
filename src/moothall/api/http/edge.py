"""What stands before every handler of the HTTP door: how the server was called, who calls, and what
becomes of an error.
"""

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
from moothall.api.identity import WHO_ASKS, BearerTokens, call_as, is_loopback
from moothall.api.status import RETRY_SECONDS, http_status_of
from moothall.api.web.forms import wrong_page
from moothall.errors import RateLimited
from moothall.telemetry import metrics

log = telemetry.get_logger(__name__)

_OTHER, _GONE = "other", "cancelled"
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
_METHODS = frozenset(HTTPMethod)
_PLAIN = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""No answer is kept by a cache or guessed at by a browser, unless its handler says otherwise."""


def answer_errors(app: ASGIApp, calls: int, readers: int) -> ASGIApp:
    """Turn whatever goes wrong behind it into an answer, and refuse what is more than `calls` at a
    time. Who listens to events is no call any more once that has begun, but one of so many
    `readers`.
    """
    in_hand, listening = 0, 0

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal in_hand, listening
        if in_hand >= calls:
            refusal = problem(
                429, "RATE_LIMITED", f"{calls} requests are in hand; try again", RETRY_SECONDS
            )
            return await refusal(scope, receive, send)
        listens = False

        async def send_wrapper(message: Message) -> None:
            nonlocal in_hand, listening, listens
            if message["type"] == "http.response.start" and Headers(raw=message["headers"]).get(
                "content-type", ""
            ).startswith(EVENTS):
                if listening >= readers:
                    raise RateLimited(f"{readers} readers listen to events; try again")
                in_hand, listening, listens = in_hand - 1, listening + 1, True
            await send(message)

        in_hand += 1
        try:
            await app(scope, receive, send_wrapper)
        except Exception as error:  # noqa: BLE001 - the edge of the process; where an answer has begun, uvicorn ends the connection
            await _response_for(scope, error)(scope, receive, send)
        finally:
            if listens:
                listening -= 1
            else:
                in_hand -= 1

    return answer


def _response_for(scope: Scope, error: Exception) -> Response:
    """Return the answer for an error. A bug is logged: its own text is not for callers."""
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
            log.error("a request failed by a bug", path=scope["path"], exc_info=error)
            return problem(500, "INTERNAL", "internal error; the server's log says more")


async def not_served(request: Request, error: Exception) -> Response:
    """Answer what no route serves."""
    if not isinstance(error, HTTPException):
        raise TypeError(f"{type(error).__name__} is no answer of the routes") from error
    path, response_headers = request.url.path[:100], {}
    said = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        said = f"there is nothing at {path}; docs/doors.md says what there is"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        there = [
            route
            for route in request.app.routes
            if route.matches(request.scope)[0] is not Match.NONE
        ]  # one for each method
        allowed = sorted({method for route in there for method in route.methods or ()})
        said = f"{path} takes {', '.join(allowed)}, not {request.method[:20]}"
        response_headers["Allow"] = ",".join(allowed)
    if request.method == "GET" and wants_page(request.scope):
        return wrong_page(error.status_code, said)
    response = problem(error.status_code, _CODES.get(error.status_code, "INVALID_REQUEST"), said)
    response.headers.update(response_headers)
    return response


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks, for somebody to look at."""
    return "text/html" in Headers(scope=scope).get("accept", "")


def check_origin(app: ASGIApp, host: str, more: Collection[str]) -> ASGIApp:
    """Refuse what a page of somebody else's makes a browser send: to this address under a name of
    theirs (DNS rebinding), or from their origin. A server that others can reach has TLS, whose
    certificate holds its names.
    """
    only_names = is_loopback(host) or bool(more)
    names = {name.lower() for name in (host.strip("[]"), *more)}

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        called, origins = ",".join(headers.getlist("host")), headers.getlist("origin")
        name = host_name(called)
        if only_names and not (name in names or (is_loopback(host) and is_loopback(name))):
            raise HttpRefusal(
                403,
                "WRONG_HOST",
                f"this server is not called {name[:80]!r}; further names are said in web.hosts",
            )
        if any(
            origin.lower() not in {f"http://{called}".lower(), f"https://{called}".lower()}
            for origin in origins
        ):
            raise HttpRefusal(
                403, "WRONG_ORIGIN", f"requests from pages of {origins[0][:80]!r} are not answered"
            )
        await app(scope, receive, send)

    return check


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty where there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def authenticate(app: ASGIApp, bearers: BearerTokens, is_open: Callable[[Scope], bool]) -> ASGIApp:
    """Let requests with a known token through, as their principal; what `is_open` is answered to
    anybody.
    """

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        principal = bearers.find(Headers(scope=scope).getlist("authorization"))
        if principal is None and not is_open(scope):
            raise HttpRefusal(401, "UNAUTHENTICATED", WHO_ASKS)
        call_as(principal)
        await app(scope, receive, send)

    return check


def with_its_client(app: ASGIApp) -> ASGIApp:
    """Cancel a request whose client goes away, and what it runs with it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.current_task()
        messages: asyncio.Queue[Message] = asyncio.Queue(
            1
        )  # no more of a body is taken than is read

        async def listen() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await messages.put(message)
            if working is not None:
                working.cancel()

        async def send_wrapper(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                # after an answer uvicorn says that the client is gone, whether it is or not
                listening.cancel()
            await send(message)

        listening = asyncio.create_task(listen())
        try:
            await app(scope, messages.get, send_wrapper)
        finally:
            listening.cancel()

    return answer


def observe(app: ASGIApp, routes: Sequence[Route]) -> ASGIApp:
    """Every request as a span, in the trace that its caller named, and in the figures."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).getlist("traceparent")
        route = next(
            (route.path for route in routes if route.matches(scope)[0] is Match.FULL), _OTHER
        )
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        about = {"http.request.method": method, "http.route": route}
        parent = given[0] if len(given) == 1 else ""
        started, status, done = perf_counter(), 0, False

        async def send_wrapper(message: Message) -> None:
            nonlocal status, done
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _PLAIN.items():
                    headers.setdefault(name, value)
            await send(message)

        with (
            telemetry.span(f"{method} {route}", about, kind="server", parent=parent) as span,
            metrics.HTTP_REQUESTS_IN_FLIGHT.track_inprogress(),
        ):
            try:
                await app(scope, receive, send_wrapper)
                done = True
                span.set({"http.response.status_code": status})
                if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    span.fail(str(status))
            finally:
                metrics.HTTP_REQUESTS.add(route, str(status) if done else _GONE)
                metrics.HTTP_REQUEST_SECONDS.observe(perf_counter() - started, route)

    return answer
