"""The family `mcp`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moothall.config import Settings
from moothall.errors import MoothallError
from moothall.toolkits.family import Family, OpenedFamily
from moothall.toolkits.mcp.settings import McpSettings
from moothall.toolkits.web.family import WebFamily

if TYPE_CHECKING:  # as in `toolkits.family`
    from moothall.domain.status import Finding
    from moothall.toolkits.mcp.toolkit import McpTools
    from moothall.tools.spec import ToolSpec


class McpFamily(Family[McpSettings]):
    """`mcp.<server>.<tool>`: what the operator took of the servers that the settings name."""

    section = "mcp"
    kind = McpSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Those that were taken, as they were then."""
        own = self.own(settings)
        if not own.servers:
            return ()
        from moothall.toolkits.mcp.spec import taken_tools

        return [one.spec for one in taken_tools(settings, own)]

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Another tenant's are there for nobody else."""
        own = self.own(settings)
        closed = {
            name
            for name, server in own.servers.items()
            if server.tenants and tenant not in server.tenants
        }
        if not closed:
            return {}
        return {
            spec.name: f"mcp.servers.{server}.tenants does not name this tenant"
            for spec in self.specs(settings)
            if (server := spec.name.split(".")[1]) in closed
        }

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """Servers that live on end with their workspaces, and at the end."""
        tools = self.tools(settings)
        try:
            yield OpenedFamily(tools.call, tools.close_workspace)
        finally:
            await tools.close()

    def tools(self, settings: Settings) -> McpTools:
        """Return what runs them, and asks servers what they offer. Raises `ConfigurationError`."""
        from moothall.toolkits.mcp.spec import taken_tools
        from moothall.toolkits.mcp.toolkit import McpTools

        own = self.own(settings)
        return McpTools(
            settings.sandbox, own, WebFamily().own(settings), taken_tools(settings, own)
        )

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Ask each server what it offers, and compare it with what was taken."""
        from moothall.domain.status import Finding
        from moothall.toolkits.mcp.spec import read_offers, taken_tools

        own = self.own(settings)
        if not own.servers:
            yield Finding(
                "tools mcp.*", ok=True, detail="not offered: no server is set ([mcp.servers.NAME])"
            )
        for name in own.servers:
            part, again = (
                f"tools mcp.{name}.*",
                f"`moothall tools take {name}` shows what it offers and takes it",
            )
            try:
                held = {
                    one.offer.name: one.offer.digest
                    for one in taken_tools(settings, own)
                    if one.server == name
                }
                offered = read_offers(name, own, await self.tools(settings).offers(name))
            except MoothallError as error:
                yield Finding(
                    part,
                    ok=False,
                    detail=error.message,
                    mend=f"see [mcp.servers.{name}] and docs/tools.md, MCP servers",
                )
                continue
            changed = {one.offer.name: one.offer.digest for one in offered.tools} != held
            refused = f", {len(offered.refused)} refused" if offered.refused else ""
            detail = f"answers; {len(offered.tools)} tools{refused}, {len(held)} taken"
            yield Finding(
                part,
                ok=not (held and changed),
                detail=detail + ("; they differ" if held and changed else ""),
                mend=again if changed else "",
            )
