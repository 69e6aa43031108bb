"""JSON documents of the HTTP API: requests, read within limits and validated, and responses; and
their description, the OpenAPI 3.1 document of `/api/v1`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message import Message as ProtoMessage
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moothall import __version__, errors
from moothall.domain.codec import describe_errors
from moothall.domain.ids import ID_PATTERN

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


async def read_body(request: Request, kind: type[B]) -> B:
    """Return the request's document as a model. Raises what `body` raises, and `InvalidRequest`
    that names the invalid field.
    """
    try:
        return kind.model_validate_json(await body(request))
    except ValidationError as error:
        raise errors.InvalidRequest(f"invalid request: {describe_errors(error, 'body')}") from None


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


# The OpenAPI 3.1 document of `/api/v1`, generated from the messages and models of its handlers.


Schema = dict[str, Any]
KEY_CHARS, SEQ_DIGITS = 200, 18
"""Maximum lengths of an Idempotency-Key and of a seq."""
_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
}
_LONGS = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_REALS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}
_WELL_KNOWN: Mapping[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
}
_PROBLEM: Schema = {
    "type": "object",
    "description": "An error as in RFC 9457; `code` is what gRPC callers find in `ErrorInfo`.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code"],
}
_SEQ = f"[0-9]{{1,{SEQ_DIGITS}}}"
_HEADERS: Mapping[str, tuple[str, Schema]] = {
    "Idempotency-Key": (
        "Identifies the request among yours: repeating it has no further effect.",
        {"minLength": 1, "maxLength": KEY_CHARS, "pattern": "^[!-~]+$"},
    ),
    "If-Match": (
        "The seq that you saw: 409 if anything happened since.",
        {"pattern": f'^("{_SEQ}"|{_SEQ})$'},
    ),
    "Last-Event-ID": (
        "The seq of the last event that you received; 0 for all.",
        {"pattern": f"^{_SEQ}$"},
    ),
}


@dataclass(frozen=True, slots=True)
class HttpOperation:
    """A method of a path: its handler, the document that it accepts, the one that it returns (with
    the fields of `extra_fields`), and the headers that it reads.
    """

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    request_type: type[Message | BaseModel] | None = None
    response_type: type[Message] | str = ""
    extra_fields: type[BaseModel] | None = None
    status: int = 200
    headers: tuple[str, ...] = ()

    @property
    def route(self) -> Route:
        """The Starlette route."""
        return Route(self.path, self.handler, methods=[self.method])


def openapi(operations: Iterable[HttpOperation]) -> Schema:
    """Return the OpenAPI document of the operations."""
    schemas: dict[str, Schema] = {"Problem": _PROBLEM}
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(
            operation, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Moothall", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_operation(operation: HttpOperation, schemas: dict[str, Schema]) -> Schema:
    id_schema = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": id_schema}
        for name in _parameter_names(operation.path)
    ]
    header_parameters = [
        {"name": name, "in": "header", "description": about, "schema": {"type": "string", **shape}}
        for name, (about, shape) in _HEADERS.items()
        if name in operation.headers
    ]
    response: Schema = {"description": "Done."}
    if isinstance(operation.response_type, str):
        response |= (
            {"content": {operation.response_type: {"schema": {"type": "string"}}}}
            if operation.response_type
            else {}
        )
    else:
        response |= _content(
            _response_schema(operation.response_type, operation.extra_fields, schemas)
        )
    problem = {
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        }
    }
    description: Schema = {
        "operationId": f"{operation.method.lower()}_{operation.handler.__name__}",
        "summary": (operation.handler.__doc__ or "").split("\n", 1)[0],
        "parameters": path_parameters + header_parameters,
        "responses": {
            str(operation.status): response,
            "default": {"description": "It was refused.", **problem},
        },
    }
    if operation.request_type is not None:
        description["requestBody"] = {
            "required": True,
            **_content(_request_schema(operation.request_type, schemas)),
        }
    return description


def _parameter_names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _content(schema: Schema) -> Schema:
    return {"content": {"application/json": {"schema": schema}}}


def _request_schema(kind: type[Message | BaseModel], schemas: dict[str, Schema]) -> Schema:
    if issubclass(kind, BaseModel):
        return kind.model_json_schema()
    return _message_schema(cast("Descriptor", kind.DESCRIPTOR), schemas, is_response=False)


def _response_schema(
    kind: type[Message], extra_fields: type[BaseModel] | None, schemas: dict[str, Schema]
) -> Schema:
    schema = _message_schema(cast("Descriptor", kind.DESCRIPTOR), schemas, is_response=True)
    if extra_fields is None:
        return schema
    extra_schema = extra_fields.model_json_schema(
        ref_template="#/components/schemas/{model}", mode="serialization"
    )
    schemas |= extra_schema.pop("$defs", {})
    message_schema = schemas.pop(kind.DESCRIPTOR.full_name)
    return {
        **message_schema,
        "properties": message_schema["properties"] | extra_schema["properties"],
        "required": [*message_schema["required"], *extra_schema["required"]],
    }


def _message_schema(
    message: Descriptor, schemas: dict[str, Schema], *, is_response: bool
) -> Schema:
    """Add the schema of a message and return a reference to it. In a response, unset fields are
    included; in a request, all fields are optional.
    """
    if message.full_name in _WELL_KNOWN:
        return dict(_WELL_KNOWN[message.full_name])
    name = message.full_name
    if name not in schemas:
        schemas[name] = {}  # for recursive messages
        schemas[name] = {
            "type": "object",
            "properties": {
                field.name: _field_schema(field, schemas, is_response=is_response)
                for field in message.fields
            },
            "required": [
                field.name for field in message.fields if is_response and not field.has_presence
            ],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _field_schema(
    field: FieldDescriptor, schemas: dict[str, Schema], *, is_response: bool
) -> Schema:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {
            "type": "object",
            "additionalProperties": _value_schema(
                field.message_type.fields_by_name["value"], schemas, is_response=is_response
            ),
        }
    value = _value_schema(field, schemas, is_response=is_response)
    value = {"type": "array", "items": value} if field.is_repeated else value
    return value if is_response else {"anyOf": [value, {"type": "null"}]}  # null means unset


def _value_schema(
    field: FieldDescriptor, schemas: dict[str, Schema], *, is_response: bool
) -> Schema:
    kind = field.cpp_type
    if field.message_type is not None:
        return _message_schema(field.message_type, schemas, is_response=is_response)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if kind in _INTS:
        minimum, maximum = _INTS[kind]
        return {"type": "integer", "minimum": minimum, "maximum": maximum}
    if kind in _LONGS:
        return {"type": "string", "pattern": "^-?[0-9]+$"}
    if kind in _REALS:
        return {"type": "number"}
    return {"type": "boolean" if kind == FieldDescriptor.CPPTYPE_BOOL else "string"}
