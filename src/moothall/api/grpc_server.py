"""One gRPC server for all services: identity, errors, health, reflection, limits.

After authentication, an interceptor gives every call a span, counts it and turns errors into a
status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction
from time import perf_counter
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from moothall import config, errors, telemetry
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import IdentityInterceptor, is_loopback
from moothall.api.protos import services_of
from moothall.api.status import OPEN_SERVICES, RETRY_SECONDS, abort, code_of
from moothall.domain.identity import Principal
from moothall.errors import ConfigurationError

log = telemetry.get_logger(__name__)

FAREWELL_SECONDS = 10.0
"""What calls that are ended get to say so: after that their callers see CANCELLED, which nobody
tries again.
"""
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


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Puts every method of our own services behind `_watch` and `_answer`. Strangers do not come
    here, and begin no spans.
    """

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._over = False

    async def end(self, seconds: float, stopped: asyncio.Future[None]) -> None:
        """Wait for the calls in flight for so long, or until the server has `stopped`; then answer
        those that are left with UNAVAILABLE, and those that were taken and come only now.
        """
        await asyncio.wait({stopped}, timeout=seconds)
        self._over = True
        self._ended |= self._calls
        for call in self._ended:
            call.cancel()
        if self._ended:
            await asyncio.wait(self._ended, timeout=FAREWELL_SECONDS)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the call's handler, wrapped."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICES):
            return handler
        if handler is None:
            telemetry.metrics.GRPC_CALLS.add(_OTHER, grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        given = [
            str(value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "traceparent"
        ]
        parent = given[0] if len(given) == 1 else ""  # more than one is none, as W3C says
        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        # The bytes are read inside, so that what is no message of ours gets an answer of ours.
        answer = _watch(self._track(_answer(handler, method)), method.strip("/"), parent)
        made: grpc.RpcMethodHandler[Any, Any] = make(answer, None, handler.response_serializer)
        return made

    def _track(self, behaviour: Any) -> Any:
        """Know a call while it is answered, and tell its caller where the server ended it."""

        async def answer(request: Any, context: Any) -> Any:
            call = asyncio.current_task()
            assert call is not None  # noqa: S101 - for mypy: a call has a task
            self._calls.add(call)
            try:
                if not self._over:
                    return await behaviour(request, context)
            except asyncio.CancelledError:
                if call not in self._ended:
                    raise
                call.uncancel()
            finally:
                self._calls.discard(call)
            why = (
                "this server is stopping; what was asked for goes on: ask again with the same id, "
                "another one answers"
            )
            return await abort(context, grpc.StatusCode.UNAVAILABLE, "STOPPING", why, RETRY_SECONDS)

        return answer


def _watch(behaviour: Any, method: str, parent: str) -> Any:
    """Every call as a span, in the trace that its caller named, and in the figures."""
    service, _, name = method.rpartition("/")
    about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}

    async def answer(request: Any, context: Any) -> Any:
        started = perf_counter()
        code = grpc.StatusCode.CANCELLED
        aborted: grpc.aio.AbortError | None = None
        answered = None
        with (
            telemetry.span(method, about, kind="server", parent=parent) as span,
            telemetry.metrics.GRPC_CALLS_IN_FLIGHT.track_inprogress(),
        ):
            try:
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
    return next(
        (code for code in grpc.StatusCode if code.value[0] == value), grpc.StatusCode.UNKNOWN
    )


def _answer(handler: grpc.RpcMethodHandler[Any, Any], method: str) -> Any:
    """Read the request, call the method, and write what it streams."""
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    read: Any = handler.request_deserializer
    served = (
        isasyncgenfunction(behaviour)
        if handler.response_streaming
        else iscoroutinefunction(behaviour)
    )

    async def answer(request: Any, context: Any) -> Any:
        async with _tell_errors(context, method):
            # all our methods are coroutines or async generators: a plain function is the generated
            # base's
            if not served:
                await abort(
                    context,
                    grpc.StatusCode.UNIMPLEMENTED,
                    "UNIMPLEMENTED",
                    f"{method} is not served by this version",
                )
            try:  # of a stream of requests, which none of ours takes, nothing is read here
                message = read(request) if isinstance(request, bytes) else request
            except DecodeError as error:
                raise errors.InvalidRequest(
                    f"the request of {method} is no message of its type: {error}"
                ) from error
            if not handler.response_streaming:
                return await behaviour(message, context)
            # Written here, not yielded on: when the caller goes, the generator is closed at once,
            # not when it is collected.
            async with aclosing(behaviour(message, context)) as messages:
                async for item in messages:
                    await context.write(item)
            return None

    return answer


@asynccontextmanager
async def _tell_errors(context: Any, method: str) -> AsyncIterator[None]:
    """Answer the caller with what went wrong inside. A bug is logged; the caller learns only that
    there was one.
    """
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except errors.MoothallError as error:
        retry_after = (
            (error.retry_after or RETRY_SECONDS) if isinstance(error, errors.Temporary) else None
        )
        await abort(context, code_of(error), error.code, error.message, retry_after)
    except Exception:  # the edge of the process: grpc would send a bug's own text to the caller
        log.exception("a call failed by a bug", method=method)
        await abort(
            context,
            grpc.StatusCode.INTERNAL,
            "INTERNAL",
            "internal error; the server's log says more",
        )


_KEEPALIVE_TIMEOUT_MS = 20_000
_PING_INTERVAL_MS = 10_000
_ARRIVED_SECONDS = 0.1
"""Time to accept calls that have arrived: gRPC ends others with CANCELLED, which nobody retries."""
_LAST_SECONDS = 1.0
"""What the last answers get to be sent."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens. `port` is the one that it got where 0 was asked for."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """What a client connects to."""
        return _address(self.host, self.port)


@asynccontextmanager
async def grpc_server(
    settings: config.GrpcSettings,
    limits: config.LimitSettings,
    dependencies: ApiDependencies,
    tokens: Mapping[str, Principal],
    leave_seconds: float = 0.0,
) -> AsyncIterator[Server]:
    """Serve until the context ends. Then its health is NOT_SERVING at once, it goes on for
    `leave_seconds`, and calls in flight get `settings.grace_seconds` to end; those that do not are
    answered UNAVAILABLE: what they asked for goes on, and another server says what it came to.

    `tokens` says who each accepted bearer token stands for (`identity.read_tokens`). Raises
    `ConfigurationError` without tokens, without TLS on anything but loopback, and where the
    address is taken.
    """
    if not tokens or not all(tokens):
        raise ConfigurationError("the gRPC server needs a token that is not empty: set grpc.token")
    credentials = await asyncio.to_thread(_credentials, settings)
    calls = CallInterceptor()
    server = grpc.aio.server(
        # The first one sees a call first: nothing is answered, not even an error, before it is
        # known who asks.
        interceptors=(IdentityInterceptor(tokens), calls),
        options=_options(settings, limits),
        maximum_concurrent_rpcs=settings.calls,
    )
    services = services_of(dependencies)
    for service in services:
        service.add(service.answers, server)
    names = [service.descriptor.full_name for service in services]
    checkup = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checkup, server)
    reflection.enable_server_reflection(
        (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    port = _bind(server, settings, settings.port, credentials)
    for more in settings.more_ports:
        _bind(server, settings, more, credentials)
    await server.start()
    try:
        for name in names:
            await checkup.set(name, health_pb2.HealthCheckResponse.SERVING)
        dependencies.taking.set()
        yield Server(settings.host, port)
    finally:
        dependencies.taking.clear()
        await checkup.enter_graceful_shutdown()
        await asyncio.sleep(leave_seconds)
        dependencies.stopping.set()
        await asyncio.sleep(_ARRIVED_SECONDS)
        stopped = asyncio.ensure_future(server.stop(settings.grace_seconds + FAREWELL_SECONDS))
        await calls.end(settings.grace_seconds, stopped)
        await server.stop(_LAST_SECONDS)
        await stopped


def _address(host: str, port: int) -> str:
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _options(settings: config.GrpcSettings, limits: config.LimitSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        # What a caller asked for may be long (diffs of many seats); it sets its own limit for what
        # it takes.
        ("grpc.max_send_message_length", -1),
        # A caller that vanished without a word is noticed, and its deliberation stopped.
        ("grpc.keepalive_time_ms", int(settings.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # Callers who wait for long may ask too.
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two servers on one port would share the calls between them.
        ("grpc.so_reuseport", 0),
    ]


def _credentials(settings: config.GrpcSettings) -> grpc.ServerCredentials | None:
    """Return TLS credentials, or None for plain text on loopback."""
    if settings.tls_cert is None and settings.tls_key is None:
        if settings.tls_client_ca is not None:
            raise ConfigurationError(
                "grpc.tls_client_ca needs grpc.tls_cert and grpc.tls_key: without TLS no client is "
                "asked"
            )
        if not is_loopback(settings.host):
            raise ConfigurationError(
                f"grpc.host {settings.host} is no loopback address: set grpc.tls_cert and "
                "grpc.tls_key, or bind 127.0.0.1"
            )
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigurationError(
            "grpc.tls_cert and grpc.tls_key belong together; only one of them is set"
        )
    try:
        pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
        client_ca = settings.tls_client_ca.read_bytes() if settings.tls_client_ca else None
    except OSError as error:
        raise ConfigurationError(
            f"the TLS files of the gRPC server cannot be read: {error}"
        ) from error
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def _bind(
    server: grpc.aio.Server,
    settings: config.GrpcSettings,
    port: int,
    credentials: grpc.ServerCredentials | None,
) -> int:
    address = _address(settings.host, port)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        tls = (
            ""
            if credentials is None
            else ", or grpc.tls_cert and grpc.tls_key are no PEM certificate and its key"
        )
        raise ConfigurationError(
            f"the gRPC server cannot listen on {address}: the port is taken or the address is not "
            f"this machine's{tls}"
        ) from error
