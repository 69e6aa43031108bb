"""The family `docker`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moothall.concurrency import beside
from moothall.config import Settings
from moothall.errors import MoothallError
from moothall.toolkits.docker.settings import DockerSettings
from moothall.toolkits.family import Family, OpenedFamily

if TYPE_CHECKING:  # as in `toolkits.family`
    from moothall.domain.status import Finding
    from moothall.tools.spec import ToolSpec

_NEEDED = ("MemoryLimit", "PidsLimit", "CpuCfsQuota")


class DockerFamily(Family[DockerSettings]):
    """`docker.*`, on an engine of the operator's. What a workspace made there is removed when it
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
        del tenant  # one engine is all tenants'
        lack = "MOOTHALL_DOCKER__HOST, unix:// and an engine's socket, is not set"
        return (
            {spec.name: lack for spec in self.specs(settings)}
            if self.own(settings).host is None
            else {}
        )

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """Remove what has expired, beside running tools."""
        from moothall.toolkits.docker.toolkit import DockerTools

        tools = DockerTools(self.own(settings))
        async with beside(tools.run(), "containers"):
            yield OpenedFamily(tools.call, tools.close_workspace)

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Ask the engine what it is, and whether it can bound containers."""
        from moothall.domain.status import Finding
        from moothall.toolkits.docker.engine import engine_at

        host, part = self.own(settings).host, "tools docker.*"
        if host is None:
            yield Finding(part, ok=True, detail="not offered: MOOTHALL_DOCKER__HOST is not set")
            return
        try:
            async with engine_at(host) as engine:
                version = await engine.ask("GET", "/version")
                limits = await engine.ask("GET", "/info")
        except MoothallError as error:
            mend = "see that the engine runs and that its socket may be opened by this user"
            yield Finding(
                part,
                ok=False,
                detail=" ".join(f"{error.message} {error.__cause__ or ''}".split()),
                mend=mend,
            )
            return
        detail = f"engine {version.get('Version')} at {host}"
        if lacks := [name for name in _NEEDED if not limits.get(name)]:
            mend = (
                "give the engine those cgroup controllers; without them containers are not bounded"
            )
            yield Finding(
                part, ok=False, detail=f"{detail} cannot enforce {', '.join(lacks)}", mend=mend
            )
        else:
            yield Finding(part, ok=True, detail=detail)
