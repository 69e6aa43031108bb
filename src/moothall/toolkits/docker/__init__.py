"""The family `docker`, containers on the operator's engine, and its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from moothall.concurrency import run_in_background
from moothall.config import Section, Settings
from moothall.errors import MoothallError
from moothall.toolkits import Family, OpenedFamily

if TYPE_CHECKING:
    from moothall.domain.status import Finding
    from moothall.tools.spec import ToolSpec

_REQUIRED_LIMITS = ("MemoryLimit", "PidsLimit", "CpuCfsQuota")


class DockerSettings(Section):
    """The tools `docker.*`. They are offered only with a host. No role has them unless the table of
    roles grants them.
    """

    host: str | None = Field(
        None,
        description="unix:///path of an engine's socket, preferably a dedicated engine: whoever "
        "builds on it must trust it",
    )
    images: tuple[str, ...] = Field(
        (),
        description="images that may be run and built on, as patterns such as python:3.*; they "
        "must exist, since none is pulled",
    )
    build_runs: bool = Field(
        default=False,
        description="builds may use RUN, which the engine limits less strictly than containers",
    )
    network: str = Field(
        "none",
        pattern="^[a-zA-Z0-9][a-zA-Z0-9_.-]*$",
        description="network of containers; never host; builds have none",
    )


@dataclass(frozen=True, slots=True)
class DockerLimits:
    """Limits of a workspace's containers that are not settings.

    lifetime_seconds: containers and images are removed after this long, or with their workspace.
    memory_bytes: of one container, without swap; also of a build's steps. processes: of one
    container. scratch_bytes: the size of its /tmp, in its memory. context_files,
    context_bytes: number and total size of the files of a build.
    """

    lifetime_seconds: float = 1800.0
    containers: int = 4
    memory_bytes: int = 512_000_000
    processes: int = 128
    scratch_bytes: int = 64_000_000
    context_files: int = 500
    context_bytes: int = 20_000_000


class DockerFamily(Family[DockerSettings]):
    """`docker.*`, on an engine of the operator. What a workspace created there is removed when it
    ends.
    """

    section = "docker"
    kind = DockerSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """See `Family`."""
        from moothall.toolkits.docker.spec import SPECS

        del settings
        return SPECS

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        del tenant  # all tenants use one engine
        missing = "MOOTHALL_DOCKER__HOST, unix:// and an engine's socket, is not set"
        return (
            {spec.name: missing for spec in self.specs(settings)}
            if self.own_settings(settings).host is None
            else {}
        )

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """Run the tools, and remove what has expired."""
        from moothall.toolkits.docker.toolkit import DockerTools

        tools = DockerTools(self.own_settings(settings))
        async with run_in_background(tools.run(), "containers"):
            yield OpenedFamily(tools.call, tools.close_workspace)

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Ask the engine for its version, and whether it can limit containers."""
        from moothall.domain.status import Finding
        from moothall.toolkits.docker.engine import open_engine

        host, part = self.own_settings(settings).host, "tools docker.*"
        if host is None:
            yield Finding(part, ok=True, detail="not offered: MOOTHALL_DOCKER__HOST is not set")
            return
        try:
            async with open_engine(host) as engine:
                version = await engine.call("GET", "/version")
                limits = await engine.call("GET", "/info")
        except MoothallError as error:
            mend = "check that the engine runs and that this user may open its socket"
            yield Finding(
                part,
                ok=False,
                detail=" ".join(f"{error.message} {error.__cause__ or ''}".split()),
                mend=mend,
            )
            return
        detail = f"engine {version.get('Version')} at {host}"
        if lacks := [name for name in _REQUIRED_LIMITS if not limits.get(name)]:
            mend = (
                "give the engine these cgroup controllers; without them containers are not limited"
            )
            yield Finding(
                part, ok=False, detail=f"{detail} cannot enforce {', '.join(lacks)}", mend=mend
            )
        else:
            yield Finding(part, ok=True, detail=detail)
