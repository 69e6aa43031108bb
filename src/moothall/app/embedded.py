"""A server in the process of a program that uses the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.api.identity import read_tokens
from moothall.app import data_dir_lock
from moothall.app.repository import register
from moothall.app.server import describe_difference, open_app
from moothall.config import Settings, secret_values
from moothall.domain.identity import LOCAL
from moothall.domain.task import RepositoryRef
from moothall.errors import ConfigurationError
from moothall.settings import load_settings
from moothall.telemetry import configure_logs


@dataclass(frozen=True, slots=True)
class Embedded:
    """The address HOST:PORT of a server on this machine, and the token of its operator."""

    address: str
    token: str
    settings: Settings

    async def register(self, path: Path, ref: str) -> RepositoryRef:
        """Register a repository of this machine. Raises `RepositoryError`."""
        return await register(self.settings, str(path), ref)


@asynccontextmanager
async def open_embedded(overrides: Mapping[str, Any]) -> AsyncIterator[Embedded]:
    """Serve gRPC on loopback until the context ends, with hosts in this process.

    If another process serves the data directory with the same settings, yield its address. Raises
    `ConfigurationError`, also if it has other settings or no gRPC.
    """
    settings = load_settings(**overrides)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A program's own output is not mixed with our progress.
    configure_logs(
        settings.log.model_copy(update={"level": "warning"}), secrets=secret_values(settings)
    )
    address = _find_server(settings)
    if address is not None:
        if difference := describe_difference(settings, address):
            raise ConfigurationError(difference)
        if not address.grpc_port:
            raise ConfigurationError(
                f"process {address.pid} uses the data directory {settings.data_dir} and serves no "
                "gRPC; wait until it has ended, or name another data_dir"
            )
        yield Embedded(f"127.0.0.1:{address.grpc_port}", _token_of(settings), settings)
        return
    embedded = settings.model_copy(
        update={
            "grpc": settings.grpc.model_copy(update={"host": "127.0.0.1", "port": 0}),
            "web": settings.web.model_copy(update={"enabled": False}),
            "ray": settings.ray
            if settings.ray.address or settings.ray.mode == "ray"
            else settings.ray.model_copy(update={"mode": "process"}),
        }
    )
    async with open_app(embedded, lambda _line: None, serving=True) as app:
        yield Embedded(f"127.0.0.1:{app.grpc_port}", _token_of(embedded), embedded)


def _find_server(settings: Settings) -> data_dir_lock.Address | None:
    """Return the address of the process that serves the data directory; None if there is none."""
    try:
        with data_dir_lock.hold(settings.data_dir):
            return None
    except data_dir_lock.DirectoryTaken:
        return data_dir_lock.find(settings.data_dir)


def _token_of(settings: Settings) -> str:
    """Return the token of this machine's operator."""
    tokens = read_tokens(settings.grpc, settings.data_dir)
    token = next((token for token, who in tokens.items() if who.tenant == LOCAL.tenant), None)
    if token is None:
        raise ConfigurationError(f"no token of grpc belongs to the tenant {LOCAL.tenant}")
    return token
