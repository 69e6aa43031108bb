"""What stands before every handler of the HTTP door: how the server was called, who calls, and what becomes of an error."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection
from http import HTTPStatus
from time import perf_counter
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from pydantic import BaseModel, ConfigDict, ValidationError

from moothall import errors, telemetry
from moothall.domain.codec import wrong
from moothall.domain.identity import Principal
from moothall.services.identity import WHO_ASKS, Bearers, is_loopback
from moothall.services.status import RETRY_SECONDS, http_status_of
from moothall.telemetry import metrics

log = telemetry.get_logger(__name__)

CALLER = web.RequestKey("caller", Principal)
_BODY_SECONDS = 30.0
_OTHER, _GONE = "other", "cancelled"
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_LARGE", 415: "NOT_JSON"}

B = TypeVar("B", bound="Body")


class Body(BaseModel):
    """A request's JSON document. What is not known, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Turned(Exception):
    """A request that is turned away with a status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def problem(status: int, code: str, message: str, retry_after: float | None = None) -> web.Response:
    """Return an error as RFC 9457 has it; `code` is the machine code that gRPC callers find in `ErrorInfo`."""
    told = {
        "type": f"urn:moothall:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    response = web.Response(status=status, body=json.dumps(told).encode(), content_type="application/problem+json")
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return response


async def read(request: web.Request, kind: type[B]) -> B:
    """Return the request's document. Raises `Turned` for what is no JSON, `InvalidRequest` naming what is wrong in it."""
    if request.content_type != "application/json":  # a page of somebody else's can send anything but this without asking
        raise Turned(415, "NOT_JSON", f"the content type is {request.content_type[:80]!r}; send application/json")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            raw = await request.read()
    except TimeoutError as error:
        raise Turned(408, "BODY_TOO_SLOW", f"the body did not come within {_BODY_SECONDS:.0f} seconds") from error
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise errors.InvalidRequest(f"this is no request: {wrong(error, 'body')}") from None


def answering(calls: int) -> Middleware:
    """Turn whatever goes wrong behind it into an answer, and refuse what is more than `calls` at a time."""
    in_hand = 0

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal in_hand
        if in_hand >= calls:
            return problem(429, "RATE_LIMITED", f"{calls} requests are in hand; try again", RETRY_SECONDS)
        in_hand += 1
        try:
            return await handler(request)
        except Turned as turned:
            return problem(turned.status, turned.code, turned.message)
        except errors.MoothallError as error:
            retry_after = (error.retry_after or RETRY_SECONDS) if isinstance(error, errors.Temporary) else None
            return problem(http_status_of(error), error.code, error.message, retry_after)
        except web.HTTPException as error:
            return _of_aiohttp(request, error)
        except Exception:  # the edge of the process: a bug's own text is not for callers
            log.exception("a request failed by a bug", path=request.path)
            return problem(500, "INTERNAL", "internal error; the server's log says more")
        finally:
            in_hand -= 1

    return answer


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> web.Response:
    said = error.text or error.reason
    if isinstance(error, web.HTTPNotFound):
        said = f"there is nothing at {request.path[:100]}; docs/doors.md says what there is"
    elif isinstance(error, web.HTTPMethodNotAllowed):
        said = f"{request.path[:100]} takes {', '.join(sorted(error.allowed_methods))}, not {error.method[:20]}"
    response = problem(error.status, _CODES.get(error.status, "INVALID_REQUEST"), said)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def called_rightly(host: str, more: Collection[str]) -> Middleware:
    """Refuse what a page of somebody else's makes a browser send: to this address under a name of theirs (DNS rebinding), or
    from their origin. A server that others can reach has TLS, whose certificate holds its names.
    """
    only_names = is_loopback(host) or bool(more)
    names = {name.lower() for name in (host.strip("[]"), *more)}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _name(request.host)
        if only_names and not (name in names or (is_loopback(host) and is_loopback(name))):
            raise Turned(403, "WRONG_HOST", f"this server is not called {name[:80]!r}; further names are said in web.hosts")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{request.host}".lower(), f"https://{request.host}".lower()}:
            raise Turned(403, "WRONG_ORIGIN", f"requests from pages of {origin[:80]!r} are not answered")
        return await handler(request)

    return check


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def identified(bearers: Bearers, open_paths: Collection[str]) -> Middleware:
    """Let requests with a known token through, as their principal; `open_paths` are answered to anybody."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        principal = bearers.find(request.headers.getall("Authorization", []))
        if principal is not None:
            request[CALLER] = principal
        elif request.path not in open_paths:
            raise Turned(401, "UNAUTHENTICATED", WHO_ASKS)
        return await handler(request)

    return check


@web.middleware
async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every request as a span, in the trace that its caller named, and in the figures."""
    given = request.headers.getall("traceparent", [])
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else _OTHER
    method = request.method if request.method in hdrs.METH_ALL else _OTHER
    about = {"http.request.method": method, "http.route": route}
    parent = given[0] if len(given) == 1 else ""
    started, status = perf_counter(), _GONE
    with telemetry.span(f"{method} {route}", about, kind="server", parent=parent) as span, metrics.HTTP_REQUESTS_IN_FLIGHT.held():
        try:
            response = await handler(request)
            status = str(response.status)
            span.set({"http.response.status_code": response.status})
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.fail(status)
            return response
        finally:
            metrics.HTTP_REQUESTS.add(route, status)
            metrics.HTTP_REQUEST_SECONDS.observe(perf_counter() - started, route)


async def plain_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """No answer is kept by a cache, guessed at by a browser, or tells what serves it."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Server"] = "moothall"
