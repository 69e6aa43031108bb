"""The services of the protos over HTTP: `POST /<package>.<Service>/<Method>`, messages in protobuf's JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.errors import InvalidRequest
from moothall.services.protos import Service
from moothall.services.rest.documents import JSON, body, lines

_SAID = 500


def rpc_routes(services: Iterable[Service]) -> list[Route]:
    """Return a route for every method, which is answered by what answers it over gRPC."""
    return [
        Route(
            f"/{service.descriptor.full_name}/{method.name}",
            _route(getattr(service.answers, method.name), GetMessageClass(method.input_type), stream=method.server_streaming),
            methods=["POST"],
        )
        for service in services
        for method in service.descriptor.methods
    ]


def _route(answer: Any, kind: type[Message], *, stream: bool) -> Callable[[Request], Any]:
    async def one(request: Request) -> Response:
        return Response(_json(await answer(_message(await body(request), kind), None)), media_type=JSON)

    async def several(request: Request) -> Response:
        return await lines(answer(_message(await body(request), kind), None), _json)

    return several if stream else one


def _message(raw: bytes, kind: type[Message]) -> Message:
    """Return what was sent. Raises `InvalidRequest`."""
    name = kind.DESCRIPTOR.full_name
    if not raw.lstrip().startswith(b"{"):  # an empty list would be taken for an empty message
        raise InvalidRequest(f"this is no {name}: it is no JSON object")
    try:
        return json_format.Parse(raw, kind())
    except (json_format.Error, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"this is no {name}: {str(error)[:_SAID]}") from None


def _json(message: Message) -> str:
    """Return a message with the names that the protos have; numbers of 64 bits are text, as protobuf's JSON has them."""
    return json_format.MessageToJson(
        message, indent=None, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
