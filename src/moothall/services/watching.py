"""Every call as a span, in the trace that its caller named, and in the figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import grpc
import grpc.aio

from moothall import telemetry
from moothall.services.status import OPEN_SERVICES
from moothall.services.wrapping import behaviour_of, with_behaviour

_OTHER = "other"
_OF_THE_CALLER = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
"""Statuses that say nothing against the server: its span is not marked as failed."""


class WatchInterceptor(grpc.aio.ServerInterceptor):
    """Stands behind the identity, so that strangers begin no spans, and before the errors, whose statuses it sees."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the call's handler, watched."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICES):
            return handler
        if handler is None:
            telemetry.metrics.GRPC_CALLS.add(_OTHER, grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        parent = _parent(handler_call_details.invocation_metadata or ())
        watched = _watched(behaviour_of(handler), method.strip("/"), parent)
        return with_behaviour(handler, watched, handler.request_deserializer)


def _parent(metadata: Any) -> str:
    """Return the caller's traceparent; more than one is none, as W3C says."""
    given = [str(value) for key, value in metadata if key == "traceparent"]
    return given[0] if len(given) == 1 else ""


def _watched(behaviour: Any, method: str, parent: str) -> Any:
    service, _, name = method.rpartition("/")
    about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}

    async def answer(request: Any, context: Any) -> Any:
        started = perf_counter()
        code = grpc.StatusCode.CANCELLED
        aborted: grpc.aio.AbortError | None = None
        answered = None
        with telemetry.span(method, about, kind="server", parent=parent) as span, telemetry.metrics.GRPC_CALLS_IN_FLIGHT.held():
            try:
                # The errors' interceptor behind this one has made every handler a coroutine, streams too.
                answered = await behaviour(request, context)
                code = grpc.StatusCode.OK
            except grpc.aio.AbortError as error:
                code, aborted = _code(context), error
                if code not in _OF_THE_CALLER:
                    span.fail(code.name)
            finally:
                span.set({"rpc.grpc.status_code": code.value[0]})
                telemetry.metrics.GRPC_CALLS.add(method, code.name)
                telemetry.metrics.GRPC_CALL_SECONDS.observe(perf_counter() - started, method)
        if aborted is not None:
            raise aborted
        return answered

    return answer


def _code(context: Any) -> grpc.StatusCode:
    """Return the status that a call was aborted with."""
    given = context.code()
    value = given if isinstance(given, int) else given.value[0]
    return next((code for code in grpc.StatusCode if code.value[0] == value), grpc.StatusCode.UNKNOWN)
