"""What `/api/v1` is, as OpenAPI 3.1: made of the messages and documents that its handlers read and
write, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall import __version__
from moothall.domain.ids import ID_PATTERN

Schema = dict[str, Any]
KEY_CHARS, SEQ_DIGITS = 200, 18
"""Of an Idempotency-Key, and of a seq."""
_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
}
_LONGS = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_REALS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}
_KNOWN: Mapping[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
}
_PROBLEM: Schema = {
    "type": "object",
    "description": "An error as RFC 9457 has it; `code` is what gRPC callers find in `ErrorInfo`.",
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
        "Names the request among yours: the same again has no other effect than once.",
        {"minLength": 1, "maxLength": KEY_CHARS, "pattern": "^[!-~]+$"},
    ),
    "If-Match": (
        "The seq that you saw: 409 where anything came since.",
        {"pattern": f'^("{_SEQ}"|{_SEQ})$'},
    ),
    "Last-Event-ID": (
        "The seq of the last event that you had; 0 for all.",
        {"pattern": f"^{_SEQ}$"},
    ),
}


@dataclass(frozen=True, slots=True)
class HttpOperation:
    """A method of a path: what answers it, the document that it takes, what it gives (with the
    fields of `more`), and headers that it heeds.
    """

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Response]]
    takes: type[Message | BaseModel] | None = None
    gives: type[Message] | str = ""
    more: type[BaseModel] | None = None
    status: int = 200
    headers: tuple[str, ...] = ()

    @property
    def route(self) -> Route:
        """Where it is served."""
        return Route(self.path, self.answer, methods=[self.method])


def openapi(operations: Iterable[HttpOperation]) -> Schema:
    """Return the document."""
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
    an_id = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
    named = [
        {"name": name, "in": "path", "required": True, "schema": an_id}
        for name in _names(operation.path)
    ]
    heeded = [
        {"name": name, "in": "header", "description": about, "schema": {"type": "string", **shape}}
        for name, (about, shape) in _HEADERS.items()
        if name in operation.headers
    ]
    told: Schema = {"description": "Done."}
    if isinstance(operation.gives, str):
        told |= (
            {"content": {operation.gives: {"schema": {"type": "string"}}}}
            if operation.gives
            else {}
        )
    else:
        told |= _content(_answer(operation.gives, operation.more, schemas))
    problem = {
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        }
    }
    described: Schema = {
        "operationId": f"{operation.method.lower()}_{operation.answer.__name__}",
        "summary": (operation.answer.__doc__ or "").split("\n", 1)[0],
        "parameters": named + heeded,
        "responses": {
            str(operation.status): told,
            "default": {"description": "It was refused.", **problem},
        },
    }
    if operation.takes is not None:
        described["requestBody"] = {
            "required": True,
            **_content(_request_schema(operation.takes, schemas)),
        }
    return described


def _names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _content(schema: Schema) -> Schema:
    return {"content": {"application/json": {"schema": schema}}}


def _request_schema(kind: type[Message | BaseModel], schemas: dict[str, Schema]) -> Schema:
    if issubclass(kind, BaseModel):
        return kind.model_json_schema()
    return _message(cast("Descriptor", kind.DESCRIPTOR), schemas, told=False)


def _answer(
    kind: type[Message], more: type[BaseModel] | None, schemas: dict[str, Schema]
) -> Schema:
    found = _message(cast("Descriptor", kind.DESCRIPTOR), schemas, told=True)
    if more is None:
        return found
    added = more.model_json_schema(
        ref_template="#/components/schemas/{model}", mode="serialization"
    )
    schemas |= added.pop("$defs", {})
    whole = schemas.pop(kind.DESCRIPTOR.full_name)
    return {
        **whole,
        "properties": whole["properties"] | added["properties"],
        "required": [*whole["required"], *added["required"]],
    }


def _message(found: Descriptor, schemas: dict[str, Schema], *, told: bool) -> Schema:
    """Return a reference to the schema of a message, which is added: with what is not set as well
    where it is told, and all optional where it is read.
    """
    if found.full_name in _KNOWN:
        return dict(_KNOWN[found.full_name])
    name = found.full_name
    if name not in schemas:
        schemas[name] = {}  # it may hold itself
        schemas[name] = {
            "type": "object",
            "properties": {field.name: _field(field, schemas, told=told) for field in found.fields},
            "required": [field.name for field in found.fields if told and not field.has_presence],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _field(field: FieldDescriptor, schemas: dict[str, Schema], *, told: bool) -> Schema:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {
            "type": "object",
            "additionalProperties": _value(
                field.message_type.fields_by_name["value"], schemas, told=told
            ),
        }
    value = _value(field, schemas, told=told)
    value = {"type": "array", "items": value} if field.is_repeated else value
    return value if told else {"anyOf": [value, {"type": "null"}]}  # null is what is not set


def _value(field: FieldDescriptor, schemas: dict[str, Schema], *, told: bool) -> Schema:
    kind = field.cpp_type
    if field.message_type is not None:
        return _message(field.message_type, schemas, told=told)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if kind in _INTS:
        least, most = _INTS[kind]
        return {"type": "integer", "minimum": least, "maximum": most}
    if kind in _LONGS:
        return {"type": "string", "pattern": "^-?[0-9]+$"}
    if kind in _REALS:
        return {"type": "number"}
    return {"type": "boolean" if kind == FieldDescriptor.CPPTYPE_BOOL else "string"}
