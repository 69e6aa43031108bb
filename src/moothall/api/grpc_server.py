"""The services of the protos with their implementations, which HTTP serves too; and one gRPC server
for all of them: identity, errors, health, reflection, limits.

After authentication, an interceptor gives every call a span, counts it and turns errors into a
status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction
from time import perf_counter
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from moothall import config, errors, telemetry
from moothall.api.agent import AgentKernel, AgentService
from moothall.api.context import Context
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import BearerTokens, IdentityInterceptor, is_loopback
from moothall.api.orchestrator import OrchestratorService
from moothall.api.protobuf import OPEN_SERVICES, RETRY_SECONDS, abort, grpc_code
from moothall.api.stories import Planning, StoryCoach
from moothall.api.tools import Scoring, SecureRunner, Tools, ToolService
from moothall.errors import ConfigurationError
from moothall.pb.context.v1 import context_pb2, context_pb2_grpc
from moothall.pb.kernel.v1 import kernel_pb2, kernel_pb2_grpc
from moothall.pb.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from moothall.pb.planning.v1 import planning_pb2, planning_pb2_grpc
from moothall.pb.runner.v1 import runner_pb2, runner_pb2_grpc
from moothall.pb.shannon.agent import agent_pb2, agent_pb2_grpc
from moothall.pb.storycoach.v1 import storycoach_pb2, storycoach_pb2_grpc
from moothall.pb.tool.v1 import tool_pb2, tool_pb2_grpc
from moothall.pb.workspace.v1 import workspace_pb2, workspace_pb2_grpc

# The services.


@dataclass(frozen=True, slots=True)
class Service:
    """A service. `servicer` has a coroutine for each method, or an async generator if the method
    streams. `add` adds it to a gRPC server.
    """

    descriptor: ServiceDescriptor
    servicer: Any
    add: Callable[[Any, Any], None]


def services_of(dependencies: ApiDependencies) -> list[Service]:
    """Return the services that this process serves."""
    services = (
        []
        if "api" not in dependencies.serving.roles
        else [
            _service(
                "OrchestratorService",
                orchestrator_pb2,
                orchestrator_pb2_grpc,
                OrchestratorService(dependencies),
            ),
            _service("PlanningService", planning_pb2, planning_pb2_grpc, Planning(dependencies)),
            _service(
                "StoryCoachService",
                storycoach_pb2,
                storycoach_pb2_grpc,
                StoryCoach(dependencies.stories.author),
            ),
            _service("WorkspaceService", workspace_pb2, workspace_pb2_grpc, Scoring()),
            _service("ContextService", context_pb2, context_pb2_grpc, Context(dependencies)),
        ]
    )
    if dependencies.tools.sessions is not None:
        tools = ToolService(
            Tools(
                dependencies.tools.sessions,
                dependencies.tools.approvals,
                dependencies.tools.workflows,
            )
        )
        services += [
            _service("ToolService", tool_pb2, tool_pb2_grpc, tools),
            _service(
                "AgentKernel",
                kernel_pb2,
                kernel_pb2_grpc,
                AgentKernel(dependencies.deliberations, dependencies.tools.sessions),
            ),
        ]
    if dependencies.tools.agents is not None:
        agents = AgentService(
            dependencies.tools.agents, dependencies.health_check, dependencies.models
        )
        services.append(_service("AgentService", agent_pb2, agent_pb2_grpc, agents))
    if dependencies.tools.executions is not None:
        services.append(
            _service(
                "SecureRunner",
                runner_pb2,
                runner_pb2_grpc,
                SecureRunner(dependencies.tools.executions),
            )
        )
    return services


def _service(name: str, messages: Any, stubs: Any, servicer: Any) -> Service:
    descriptor = cast("ServiceDescriptor", messages.DESCRIPTOR.services_by_name[name])
    return Service(descriptor, servicer, getattr(stubs, f"add_{name}Servicer_to_server"))


# The server.


log = telemetry.get_logger(__name__)

CANCEL_GRACE_SECONDS = 10.0
"""Time for cancelled calls to send their status; after that callers see CANCELLED, which nobody
retries.
"""
_UNKNOWN_METHOD = "other"
_CALLER_ERRORS = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
"""Statuses that are not the server's fault: the span is not marked as failed."""
_KEEPALIVE_TIMEOUT_MS = 20_000
_PING_INTERVAL_MS = 10_000
_ACCEPT_SECONDS = 0.1
"""Time to accept calls that have arrived: gRPC ends others with CANCELLED, which nobody retries."""
_STOP_SECONDS = 1.0
"""Time to send the last responses."""
_KEEPALIVE_SECONDS = 30.0
"""A silent connection is pinged after this time."""
MAX_MESSAGE_BYTES = 4_000_000
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Responses may be long (diffs of many seats); the client sets its own limit.
    ("grpc.max_send_message_length", -1),
    # Detect callers that vanished, so that their deliberations are cancelled.
    ("grpc.keepalive_time_ms", int(_KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # Callers that wait for long may ping too.
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would share the calls between them.
    ("grpc.so_reuseport", 0),
]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """An interceptor that wraps every method of our own services with tracing, metrics and error
    translation. Unauthenticated calls do not get here and start no spans.
    """

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    async def end_calls(self, seconds: float, stopped: asyncio.Future[None]) -> None:
        """Wait `seconds` for the calls in flight, or until the server has `stopped`. Then answer
        the remaining calls, and calls that arrive later, with UNAVAILABLE.
        """
        await asyncio.wait({stopped}, timeout=seconds)
        self._is_stopping = True
        self._ended |= self._calls
        for call in self._ended:
            call.cancel()
        if self._ended:
            await asyncio.wait(self._ended, timeout=CANCEL_GRACE_SECONDS)

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
            telemetry.metrics.GRPC_CALLS.add(_UNKNOWN_METHOD, grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        traceparents = [
            str(value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "traceparent"
        ]
        parent = (
            traceparents[0] if len(traceparents) == 1 else ""
        )  # W3C: several headers are invalid
        create_handler: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        # The request is parsed inside, so that malformed bytes get an error of our own.
        answer = _trace_call(self._track(_handle_call(handler, method)), method.strip("/"), parent)
        method_handler: grpc.RpcMethodHandler[Any, Any] = create_handler(
            answer, None, handler.response_serializer
        )
        return method_handler

    def _track(self, behaviour: Any) -> Any:
        """Register a call while it runs, and answer UNAVAILABLE if the server cancelled it."""

        async def answer(request: Any, context: Any) -> Any:
            call = asyncio.current_task()
            assert call is not None  # noqa: S101 - for mypy: a call has a task
            self._calls.add(call)
            try:
                if not self._is_stopping:
                    return await behaviour(request, context)
            except asyncio.CancelledError:
                if call not in self._ended:
                    raise
                call.uncancel()
            finally:
                self._calls.discard(call)
            message = (
                "this server is stopping, but the work continues: send the request again with the "
                "same id, and another server answers"
            )
            return await abort(
                context, grpc.StatusCode.UNAVAILABLE, "STOPPING", message, RETRY_SECONDS
            )

        return answer


def _trace_call(behaviour: Any, method: str, parent: str) -> Any:
    """Wrap a call in a span, in the trace that its caller named, and count it."""
    service, _, name = method.rpartition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}

    async def answer(request: Any, context: Any) -> Any:
        start_time = perf_counter()
        code = grpc.StatusCode.CANCELLED
        aborted: grpc.aio.AbortError | None = None
        response = None
        with (
            telemetry.span(method, attributes, kind="server", parent=parent) as span,
            telemetry.metrics.GRPC_CALLS_IN_FLIGHT.track_inprogress(),
        ):
            try:
                response = await behaviour(request, context)
                code = grpc.StatusCode.OK
            except grpc.aio.AbortError as error:
                code, aborted = _abort_code(context), error
                if code not in _CALLER_ERRORS:
                    span.fail(code.name)
            finally:
                span.set({"rpc.grpc.status_code": code.value[0]})
                telemetry.metrics.GRPC_CALLS.add(method, code.name)
                telemetry.metrics.GRPC_CALL_SECONDS.observe(perf_counter() - start_time, method)
        if aborted is not None:
            raise aborted
        return response

    return answer


def _abort_code(context: Any) -> grpc.StatusCode:
    """Return the status that a call was aborted with."""
    status = context.code()
    value = status if isinstance(status, int) else status.value[0]
    return next(
        (code for code in grpc.StatusCode if code.value[0] == value), grpc.StatusCode.UNKNOWN
    )


def _handle_call(handler: grpc.RpcMethodHandler[Any, Any], method: str) -> Any:
    """Parse the request, call the method, and write its responses."""
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    deserialize: Any = handler.request_deserializer
    is_served = (
        isasyncgenfunction(behaviour)
        if handler.response_streaming
        else iscoroutinefunction(behaviour)
    )

    async def answer(request: Any, context: Any) -> Any:
        async with _translate_errors(context, method):
            # All our methods are coroutines or async generators; a plain function is that of the
            # generated base class.
            if not is_served:
                await abort(
                    context,
                    grpc.StatusCode.UNIMPLEMENTED,
                    "UNIMPLEMENTED",
                    f"{method} is not served by this version",
                )
            try:  # none of our methods takes a stream of requests
                message = deserialize(request) if isinstance(request, bytes) else request
            except DecodeError as error:
                raise errors.InvalidRequest(
                    f"the request of {method} is not a message of its type: {error}"
                ) from error
            if not handler.response_streaming:
                return await behaviour(message, context)
            # Written here instead of yielded: if the caller disconnects, the generator is closed at
            # once, not when it is garbage collected.
            async with aclosing(behaviour(message, context)) as messages:
                async for item in messages:
                    await context.write(item)
            return None

    return answer


@asynccontextmanager
async def _translate_errors(context: Any, method: str) -> AsyncIterator[None]:
    """Abort the call with the status of an error. A bug is logged; the caller learns only that
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
        await abort(context, grpc_code(error), error.code, error.message, retry_after)
    except Exception:  # grpc would send the bug's own text to the caller
        log.exception("a call failed because of a bug", method=method)
        await abort(
            context,
            grpc.StatusCode.INTERNAL,
            "INTERNAL",
            "internal error; see the server's log",
        )


@dataclass(frozen=True, slots=True)
class Server:
    """A listening server. `port` is the actual port if 0 was configured."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """The address that clients connect to."""
        return _address(self.host, self.port)


@asynccontextmanager
async def grpc_server(
    settings: config.GrpcSettings,
    dependencies: ApiDependencies,
    bearers: BearerTokens,
    leave_seconds: float = 0.0,
    accept_seconds: float = _ACCEPT_SECONDS,
) -> AsyncIterator[Server]:
    """Serve until the context ends. Then health is NOT_SERVING at once, the server continues for
    `leave_seconds`, and calls in flight get `settings.grace_seconds` to finish. Unfinished calls
    are answered with UNAVAILABLE: the work continues, and another server returns its result.

    Raises `ConfigurationError` without TLS on anything but loopback, and if the address is taken.
    """
    credentials = await asyncio.to_thread(_credentials, settings)
    calls = CallInterceptor()
    server = grpc.aio.server(
        # The first interceptor sees a call first: nothing is answered, not even with an error,
        # before the caller is authenticated.
        interceptors=(IdentityInterceptor(bearers), calls),
        options=_OPTIONS,
        maximum_concurrent_rpcs=settings.calls,
    )
    services = services_of(dependencies)
    for service in services:
        service.add(service.servicer, server)
    names = [service.descriptor.full_name for service in services]
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection(
        (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    port = _bind(server, settings, settings.port, credentials)
    for extra_port in settings.more_ports:
        _bind(server, settings, extra_port, credentials)
    await server.start()
    try:
        for name in names:
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        dependencies.serving.accepting_calls.set()
        yield Server(settings.host, port)
    finally:
        dependencies.serving.accepting_calls.clear()
        await health_servicer.enter_graceful_shutdown()
        await asyncio.sleep(leave_seconds)
        dependencies.serving.stopping.set()
        await asyncio.sleep(accept_seconds)
        stopped = asyncio.ensure_future(server.stop(settings.grace_seconds + CANCEL_GRACE_SECONDS))
        await calls.end_calls(settings.grace_seconds, stopped)
        await server.stop(_STOP_SECONDS)
        await stopped


def _address(host: str, port: int) -> str:
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(settings: config.GrpcSettings) -> grpc.ServerCredentials | None:
    """Return TLS credentials, or None for plain text on loopback."""
    if settings.tls_cert is None and settings.tls_key is None:
        if settings.tls_client_ca is not None:
            raise ConfigurationError(
                "grpc.tls_client_ca needs grpc.tls_cert and grpc.tls_key: without TLS, clients "
                "have no certificates"
            )
        if not is_loopback(settings.host):
            raise ConfigurationError(
                f"grpc.host {settings.host} is not a loopback address: set grpc.tls_cert and "
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
            else ", or grpc.tls_cert and grpc.tls_key are not a PEM certificate and its key"
        )
        raise ConfigurationError(
            f"the gRPC server cannot listen on {address}: the port is taken or the address is not "
            f"this machine's{tls}"
        ) from error
