"""Whether the doors of a server can be opened, asked before anything slow is started for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from moothall.config import Settings
from moothall.errors import ConfigurationError


def check_ports(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first address that cannot be listened on. Default ports of HTTP and figures may be taken."""
    for setting, host, port in _wanted(settings):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that ended just now is no hindrance
                trial.bind(address)
                trial.listen(1)
        except OSError as error:
            raise ConfigurationError(
                f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}; choose another {setting}, or 0 for any free one"
            ) from error


def _wanted(settings: Settings) -> Iterator[tuple[str, str, int]]:
    grpc, web, metrics = settings.grpc, settings.web, settings.metrics
    yield "port (grpc.port, --port)", grpc.host, grpc.port
    for port in grpc.more_ports:
        yield "grpc.more_ports", grpc.host, port
    if web.enabled and web.port is not None:
        yield "web.port", web.host, web.port
    if metrics.enabled and metrics.port is not None:
        yield "metrics.port", metrics.host, metrics.port
