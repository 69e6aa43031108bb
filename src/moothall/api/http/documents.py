"""Documents of the HTTP door: JSON that comes in, is read within limits and checked, and JSON that
goes out.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message as ProtoMessage
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moothall import errors
from moothall.domain.codec import wrong

JSON = "application/json; charset=utf-8"
EVENTS = "text/event-stream"

B = TypeVar("B", bound="Body")
T = TypeVar("T")
M = TypeVar("M", bound=ProtoMessage)

_SAID = 500


class Body(BaseModel):
    """A request's JSON document. What is not known, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HttpRefusal(Exception):
    """A request that is turned away with a status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class JsonLines(Response):
    """An answer of a line of JSON each, sent as they come; `lines` are closed with it."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        super().__init__()
        self.lines = lines
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        del scope, receive
        async with aclosing(self.lines):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for line in self.lines:
                await send(
                    {"type": "http.response.body", "body": f"{line}\n".encode(), "more_body": True}
                )
            await send({"type": "http.response.body", "body": b""})


class ServerSentEvents(JsonLines):
    """Lines that are whole server-sent events; the head is sent at once, before there is any."""

    media_type = EVENTS


async def lines(facts: AsyncGenerator[T, None], write: Callable[[T], str]) -> JsonLines:
    """Return what comes of `facts`, a line each. What is wrong before the first is raised; after
    it, the last line says so.
    """

    async def generate(first: T | None) -> AsyncGenerator[str, None]:
        async with aclosing(facts):
            try:
                if first is not None:
                    yield write(first)
                    async for fact in facts:
                        yield write(fact)
            except errors.MoothallError as error:
                yield json.dumps({"code": error.code, "detail": error.message})

    try:
        return JsonLines(generate(await anext(facts, None)))
    except BaseException:
        await facts.aclose()
        raise


def document(
    told: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON document."""
    return Response(json.dumps(told), status, headers, JSON)


def problem(status: int, code: str, message: str, retry_after: float | None = None) -> Response:
    """Return an error as RFC 9457 has it; `code` is the machine code that gRPC callers find in
    `ErrorInfo`.
    """
    told = {
        "type": f"urn:moothall:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    response = Response(json.dumps(told), status, media_type="application/problem+json")
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return response


async def body(request: Request) -> bytes:
    """Return the request's document, unread. Raises `HttpRefusal` for what is no JSON, is too large
    or
    comes too slowly.
    """
    kind = (
        request.headers.get("content-type", "application/octet-stream")
        .partition(";")[0]
        .strip()
        .lower()
    )
    if (
        kind != "application/json"
    ):  # a page of somebody else's can send anything but this without asking
        raise HttpRefusal(
            415, "NOT_JSON", f"the content type is {kind[:80]!r}; send application/json"
        )
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise HttpRefusal(
            415, "NOT_JSON", f"the body is encoded as {coding[:80]!r}; send it as it is"
        )
    settings = request.app.state.settings
    raw = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > settings.body_bytes:
                    raise HttpRefusal(
                        413,
                        "BODY_TOO_LARGE",
                        f"the body is larger than {settings.body_bytes} bytes (web.body_bytes)",
                    )
    except TimeoutError as error:
        raise HttpRefusal(
            408, "BODY_TOO_SLOW", f"the body did not come within {settings.body_seconds:g} seconds"
        ) from error
    return bytes(raw)


async def read(request: Request, kind: type[B]) -> B:
    """Return the request's document. Raises what `body` raises, `InvalidRequest` naming what is
    wrong in it.
    """
    try:
        return kind.model_validate_json(await body(request))
    except ValidationError as error:
        raise errors.InvalidRequest(f"this is no request: {wrong(error, 'body')}") from None


async def message(request: Request, kind: type[M]) -> M:
    """Return the request's document as a message of the protos. Raises what `body` and `parse`
    raise.
    """
    return parse(await body(request), kind)


def parse(raw: bytes, kind: type[M]) -> M:
    """Return what was sent. Raises `InvalidRequest`."""
    name = kind.DESCRIPTOR.full_name
    if not raw.lstrip().startswith(b"{"):  # an empty list would be taken for an empty message
        raise errors.InvalidRequest(f"this is no {name}: it is no JSON object")
    try:
        return json_format.Parse(raw, kind())
    except (json_format.Error, ValueError, TypeError, RecursionError) as error:
        raise errors.InvalidRequest(f"this is no {name}: {str(error)[:_SAID]}") from None


def to_json(message: ProtoMessage) -> str:
    """Return a message with the names that the protos have; numbers of 64 bits are text, as
    protobuf's JSON has them.
    """
    return json_format.MessageToJson(
        message,
        indent=None,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
