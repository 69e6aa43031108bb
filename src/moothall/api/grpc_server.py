"""One gRPC server for all services: identity, errors, health, reflection, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from moothall import config
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import IdentityInterceptor, is_loopback
from moothall.api.interceptor import FAREWELL_SECONDS, CallInterceptor
from moothall.api.protos import services_of
from moothall.domain.identity import Principal
from moothall.errors import ConfigurationError

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
