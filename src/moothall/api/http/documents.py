"""JSON documents of the HTTP API: requests, read within limits and validated, and responses."""

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

_DETAIL_CHARS = 500


class Body(BaseModel):
    """A request's JSON document. Unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HttpRefusal(Exception):
    """A request that is refused with a certain status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class JsonLines(Response):
    """A response of one line of JSON for each item, sent as the items arrive. `lines` is closed
    with it.
    """

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        super().__init__()
        self.lines = lines
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines."""
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
    """A response whose lines are server-sent events. Headers are sent before the first event."""

    media_type = EVENTS


async def lines(items: AsyncGenerator[T, None], write: Callable[[T], str]) -> JsonLines:
    """Return one line for each of `items`. An error before the first item is raised; a later one
    becomes the last line.
    """

    async def generate(first_item: T | None) -> AsyncGenerator[str, None]:
        async with aclosing(items):
            try:
                if first_item is not None:
                    yield write(first_item)
                    async for item in items:
                        yield write(item)
            except errors.MoothallError as error:
                yield json.dumps({"code": error.code, "detail": error.message})

    try:
        return JsonLines(generate(await anext(items, None)))
    except BaseException:
        await items.aclose()
        raise


def document(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON document."""
    return Response(json.dumps(content), status, headers, JSON)


def problem(status: int, code: str, message: str, retry_after: float | None = None) -> Response:
    """Return an error in the format of RFC 9457. `code` is the machine code that gRPC callers find
    in `ErrorInfo`.
    """
    details = {
        "type": f"urn:moothall:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    response = Response(json.dumps(details), status, media_type="application/problem+json")
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return response


async def body(request: Request) -> bytes:
    """Return the body of the request. Raises `HttpRefusal` if it is not JSON, too large or too
    slow.
    """
    media_type = (
        request.headers.get("content-type", "application/octet-stream")
        .partition(";")[0]
        .strip()
        .lower()
    )
    if (
        media_type != "application/json"
    ):  # foreign pages can send all other types without a CORS preflight
        raise HttpRefusal(
            415, "NOT_JSON", f"the content type is {media_type[:80]!r}; send application/json"
        )
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise HttpRefusal(
            415, "NOT_JSON", f"the body is encoded as {encoding[:80]!r}; send it unencoded"
        )
    limits = request.app.state.limits
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.body_bytes:
                    raise HttpRefusal(
                        413,
                        "BODY_TOO_LARGE",
                        f"the body is larger than {limits.body_bytes} bytes",
                    )
    except TimeoutError as error:
        raise HttpRefusal(
            408, "BODY_TOO_SLOW", f"the body did not arrive in {limits.body_seconds:g} seconds"
        ) from error
    return bytes(content)


async def read(request: Request, kind: type[B]) -> B:
    """Return the request's document as a model. Raises what `body` raises, and `InvalidRequest`
    that names the invalid field.
    """
    try:
        return kind.model_validate_json(await body(request))
    except ValidationError as error:
        raise errors.InvalidRequest(f"invalid request: {wrong(error, 'body')}") from None


async def message(request: Request, kind: type[M]) -> M:
    """Return the request's document as a protobuf message. Raises what `body` and `parse` raise."""
    return parse(await body(request), kind)


def parse(raw: bytes, kind: type[M]) -> M:
    """Parse a JSON document as a protobuf message. Raises `InvalidRequest`."""
    name = kind.DESCRIPTOR.full_name
    if not raw.lstrip().startswith(b"{"):  # the parser accepts an empty list as an empty message
        raise errors.InvalidRequest(f"invalid {name}: it is not a JSON object")
    try:
        return json_format.Parse(raw, kind())
    except (json_format.Error, ValueError, TypeError, RecursionError) as error:
        raise errors.InvalidRequest(f"invalid {name}: {str(error)[:_DETAIL_CHARS]}") from None


def to_json(message: ProtoMessage) -> str:
    """Return a message as JSON with the protos' field names. 64-bit numbers are text, as usual in
    protobuf's JSON.
    """
    return json_format.MessageToJson(
        message,
        indent=None,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
