"""A server in the process of a program that uses the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.api.kernel_client import local_server
from moothall.app import preflight
from moothall.app.command_repository import register
from moothall.app.server import describe_difference, open_app
from moothall.config import LlmSettings, Settings, find_default_file, secret_values
from moothall.config.models import SERVER_FIELDS
from moothall.domain.task import RepositoryRef
from moothall.errors import ConfigurationError
from moothall.settings import load_settings
from moothall.telemetry import configure_logs

_START_SECONDS, _POLL_SECONDS = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class Embedded:
    """The address HOST:PORT of a server on this machine, the token of its operator, and the
    certificate to trust.
    """

    address: str
    token: str
    certificate: Path | None
    settings: Settings

    async def register(self, path: Path, ref: str) -> RepositoryRef:
        """Register a repository of this machine. Raises `RepositoryError`."""
        return await register(self.settings, str(path), ref)


@asynccontextmanager
async def open_embedded(
    overrides: Mapping[str, Any], config: Path | None = None
) -> AsyncIterator[Embedded]:
    """Serve gRPC on loopback until the context ends, with hosts in this process.

    config: a TOML file of settings; the one of the command line by default.
    If another process serves the data directory with the same settings, yield its address. Raises
    `ConfigurationError`, also if it has other settings or no gRPC.
    """
    settings = await asyncio.to_thread(_load_settings, overrides, config)
    # A program's own output is not mixed with our progress.
    configure_logs(
        settings.log.model_copy(update={"level": "warning"}), secrets=secret_values(settings)
    )
    address = await _find_server(settings.data_dir)
    if address is not None:
        if difference := describe_difference(settings, address):
            raise ConfigurationError(difference)
        if not address.grpc_port:
            raise ConfigurationError(
                f"process {address.pid} uses the data directory {settings.data_dir} and serves no "
                "gRPC; wait until it has ended, or name another data_dir"
            )
        yield _embedded(settings, address.grpc_port)
        return
    on_ray = settings.ray.address is not None or settings.ray.mode == "ray"
    loopback = {
        "host": "127.0.0.1",
        "port": 0,
        "more_ports": (),
        "tls_cert": None,
        "tls_key": None,
        "tls_client_ca": None,
    }
    local_settings = settings.model_copy(
        update={
            "grpc": settings.grpc.model_copy(update=loopback),
            "web": settings.web.model_copy(update={"enabled": False}),
            "metrics": settings.metrics.model_copy(update={"enabled": False}),
            "ray": settings.ray.model_copy(update={} if on_ray else {"mode": "process"}),
        }
    )
    async with open_app(local_settings, lambda _line: None, serving=True) as app:
        yield _embedded(local_settings, app.grpc_port)


def _load_settings(overrides: Mapping[str, Any], config: Path | None) -> Settings:
    """Load the settings. A model server that the program names gets no key of another one."""
    values = dict(overrides)
    llm = dict(values.get("llm") or {})
    if llm.get("base_url"):
        fields = LlmSettings.model_fields
        values["llm"] = {name: fields[name].get_default() for name in SERVER_FIELDS} | llm
    settings = load_settings(config or find_default_file(), **values)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return settings


def _embedded(settings: Settings, port: int) -> Embedded:
    server, token, certificate = local_server(settings.grpc, settings.data_dir, port)
    return Embedded(server, token, certificate, settings)


async def _find_server(data_dir: Path) -> preflight.Address | None:
    """Return the address of the process that serves the data directory, or None. Wait for a process
    that is starting.
    """
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while True:
        try:
            with preflight.hold(data_dir):
                return None
        except preflight.DirectoryTaken:
            address = preflight.find(data_dir)
        if address is not None or asyncio.get_running_loop().time() > deadline:
            return address
        await asyncio.sleep(_POLL_SECONDS)
