"""The mapping of errors to gRPC and HTTP statuses. Every error carries a `google.rpc.ErrorInfo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2

from moothall import errors

DOMAIN = "moothall"
# Services of libraries: they need no authentication and set their own statuses.
OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
RETRY_SECONDS = 1.0
# The status is sent twice in HTTP/2 headers, of which clients accept 8 KB.
MESSAGE_BYTES = 1000
_DETAILS = "grpc-status-details-bin"

_GRPC_CODES: Mapping[type[errors.MoothallError], grpc.StatusCode] = {
    errors.MoothallError: grpc.StatusCode.INTERNAL,
    errors.Temporary: grpc.StatusCode.UNAVAILABLE,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Permanent: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.ConcurrentUpdate: grpc.StatusCode.ABORTED,
    errors.Refused: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.BudgetExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RepositoryError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PatchRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SandboxUnavailable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WorkspaceFailed: grpc.StatusCode.INTERNAL,
    errors.ModelReplyInvalid: grpc.StatusCode.INTERNAL,
}


_HTTP_STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""The pairs of `google.rpc.Code`; all other codes are 500."""


def http_status_of(error: errors.MoothallError) -> int:
    """Return the HTTP status of an error."""
    return _HTTP_STATUSES.get(grpc_code(error), 500)


def grpc_code(error: errors.MoothallError) -> grpc.StatusCode:
    """Return the gRPC code of an error: that of its nearest known base class."""
    return next(_GRPC_CODES[kind] for kind in type(error).__mro__ if kind in _GRPC_CODES)


def rich_status(
    code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None
) -> status_pb2.Status:
    """Return a status with its `ErrorInfo`, and with a `RetryInfo` if `retry_after` (seconds) is
    given.
    """
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=_short(message))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN))
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(retry_after * 1e9))
        status.details.add().Pack(retry)
    return status


def _short(message: str) -> str:
    encoded = message.encode("utf-8", "replace")
    return encoded[:MESSAGE_BYTES].decode("utf-8", "ignore") + (
        "…" if len(encoded) > MESSAGE_BYTES else ""
    )


async def abort(
    context: Any, code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None
) -> Never:
    """End the call with a rich status."""
    status = rich_status(code, reason, message, retry_after)
    await context.abort(code, status.message, ((_DETAILS, status.SerializeToString()),))
    raise AssertionError("abort returned")
