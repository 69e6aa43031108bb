"""The OpenAPI 3.1 document of `/api/v1`, generated from the messages and models of its handlers."""

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
