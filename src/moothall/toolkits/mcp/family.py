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
    """`mcp.<server>.<tool>`: the tools that the operator accepted from the configured servers."""

    section = "mcp"
    kind = McpSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return the accepted tools as they were described when they were accepted."""
        mcp = self.own_settings(settings)
        if not mcp.servers:
            return ()
        from moothall.toolkits.mcp.spec import accepted_tools

        return [tool.spec for tool in accepted_tools(settings, mcp)]

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Return the tools of servers that belong to other tenants."""
        mcp = self.own_settings(settings)
        closed_servers = {
            name
            for name, server in mcp.servers.items()
            if server.tenants and tenant not in server.tenants
        }
        if not closed_servers:
            return {}
        return {
            spec.name: f"mcp.servers.{server}.tenants does not name this tenant"
            for spec in self.specs(settings)
            if (server := spec.name.split(".")[1]) in closed_servers
        }

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """Run the tools. Persistent servers end with their workspaces, or at the end."""
        tools = self.tools(settings)
        try:
            yield OpenedFamily(tools.call, tools.close_workspace)
        finally:
            await tools.close()

    def tools(self, settings: Settings) -> McpTools:
        """Return the toolkit, which also lists the tools of servers. Raises
        `ConfigurationError`.
        """
        from moothall.toolkits.mcp.spec import accepted_tools
        from moothall.toolkits.mcp.toolkit import McpTools

        mcp = self.own_settings(settings)
        return McpTools(
            settings.sandbox, mcp, WebFamily().own_settings(settings), accepted_tools(settings, mcp)
        )

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Ask each server for its tools, and compare them with the accepted ones."""
        from moothall.domain.status import Finding
        from moothall.toolkits.mcp.spec import accepted_tools, read_offers

        mcp = self.own_settings(settings)
        if not mcp.servers:
            yield Finding(
                "tools mcp.*", ok=True, detail="not offered: no server is set ([mcp.servers.NAME])"
            )
        for name in mcp.servers:
            part, advice = (
                f"tools mcp.{name}.*",
                f"`moothall tools take {name}` shows its tools and accepts them",
            )
            try:
                accepted = {
                    tool.offer.name: tool.offer.digest
                    for tool in accepted_tools(settings, mcp)
                    if tool.server == name
                }
                offered = read_offers(name, mcp, await self.tools(settings).offers(name))
            except MoothallError as error:
                yield Finding(
                    part,
                    ok=False,
                    detail=error.message,
                    mend=f"see [mcp.servers.{name}] and docs/tools.md, MCP servers",
                )
                continue
            changed = {tool.offer.name: tool.offer.digest for tool in offered.tools} != accepted
            refused = f", {len(offered.refused)} refused" if offered.refused else ""
            detail = f"answers; {len(offered.tools)} tools{refused}, {len(accepted)} taken"
            yield Finding(
                part,
                ok=not (accepted and changed),
                detail=detail + ("; they differ" if accepted and changed else ""),
                mend=advice if changed else "",
            )
