"""From errors to gRPC statuses, in one table; every one of our errors carries a `google.rpc.ErrorInfo`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any, Never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from moothall import errors, telemetry
from moothall.services.wrapping import behaviour_of, with_behaviour

log = telemetry.get_logger(__name__)

DOMAIN = "moothall"
# Library code with its own statuses; needs no identity and no translation.
OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
RETRY_SECONDS = 1.0
# The status travels in HTTP/2 headers, twice, and clients take 8 KB of them.
MESSAGE_BYTES = 1000
_DETAILS = "grpc-status-details-bin"

_CODES: Mapping[type[errors.MoothallError], grpc.StatusCode] = {
    errors.MoothallError: grpc.StatusCode.INTERNAL,
    errors.Temporary: grpc.StatusCode.UNAVAILABLE,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Permanent: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Refused: grpc.StatusCode.PERMISSION_DENIED,
    errors.BudgetExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RepositoryError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PatchRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SandboxUnavailable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WorkspaceFailed: grpc.StatusCode.INTERNAL,
    errors.ModelReplyInvalid: grpc.StatusCode.INTERNAL,
}


_HTTP: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""As `google.rpc.Code` pairs them; anything else is a 500."""


def http_status_of(error: errors.MoothallError) -> int:
    """Return the HTTP status of an error."""
    return _HTTP.get(code_of(error), 500)


def code_of(error: errors.MoothallError) -> grpc.StatusCode:
    """Return the status of an error; a new kind of error has that of the nearest kind above it."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def rich_status(code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None) -> status_pb2.Status:
    """Return the status with its `ErrorInfo`, and a `RetryInfo` where there is a time (seconds) to retry after."""
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=_short(message))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN))
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(retry_after * 1e9))
        status.details.add().Pack(retry)
    return status


def _short(message: str) -> str:
    raw = message.encode("utf-8", "replace")
    return raw[:MESSAGE_BYTES].decode("utf-8", "ignore") + ("…" if len(raw) > MESSAGE_BYTES else "")


async def abort(context: Any, code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None) -> Never:
    """End the call with a rich status."""
    status = rich_status(code, reason, message, retry_after)
    await context.abort(code, status.message, ((_DETAILS, status.SerializeToString()),))
    raise AssertionError("abort returned")


@asynccontextmanager
async def errors_answered(context: Any, method: str) -> AsyncIterator[None]:
    """Answer the caller with what went wrong inside. A bug is logged; the caller learns only that there was one."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except errors.MoothallError as error:
        retry_after = (error.retry_after or RETRY_SECONDS) if isinstance(error, errors.Temporary) else None
        await abort(context, code_of(error), error.code, error.message, retry_after)
    except Exception:  # the edge of the process: grpc would send a bug's own text to the caller
        log.exception("a call failed by a bug", method=method)
        await abort(context, grpc.StatusCode.INTERNAL, "INTERNAL", "internal error; the server's log says more")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Puts every method of our own services behind `errors_answered`."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the call's handler, wrapped."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        wrap = _streaming if handler.response_streaming else _single
        # The bytes are read inside, so that what is no message of ours gets an answer of ours.
        return with_behaviour(handler, wrap(behaviour_of(handler), method, handler.request_deserializer), None)


def _read(read: Any, request: Any, method: str) -> Any:
    """Return the message in bytes; of a stream of requests, which none of ours takes, nothing is read here."""
    try:
        return read(request) if isinstance(request, bytes) else request
    except DecodeError as error:
        raise errors.InvalidRequest(f"the request of {method} is no message of its type: {error}") from error


def _single(behaviour: Any, method: str, read: Any) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        async with errors_answered(context, method):
            if not iscoroutinefunction(behaviour):
                await _unimplemented(context, method)
            return await behaviour(_read(read, request, method), context)

    return answer


def _streaming(behaviour: Any, method: str, read: Any) -> Any:
    async def answer(request: Any, context: Any) -> None:
        async with errors_answered(context, method):
            if not isasyncgenfunction(behaviour):
                await _unimplemented(context, method)
            # Written here, not yielded on: when the caller goes, the generator is closed at once, not when it is collected.
            async with aclosing(behaviour(_read(read, request, method), context)) as messages:
                async for message in messages:
                    await context.write(message)

    return answer


async def _unimplemented(context: Any, method: str) -> Never:
    # All our methods are coroutines or async generators: a plain function is the generated base's.
    await abort(context, grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED", f"{method} is not served by this version")
