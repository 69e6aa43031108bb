"""The family `mcp`, tools of configured MCP servers, and its settings. The operator accepts the
tools into the catalogue; calls pass the tool gateway like all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from moothall.config import Section, Settings
from moothall.errors import MoothallError
from moothall.toolkits import Family, OpenedFamily
from moothall.toolkits.web import WebFamily

if TYPE_CHECKING:
    from moothall.domain.status import Finding
    from moothall.toolkits.mcp.toolkit import McpTools
    from moothall.tools.spec import ToolSpec


# The settings of `mcp.*`.


Danger = Literal["read", "write", "execute", "outside"]


def _read_lines(raw: Any) -> Any:
    """Parse the lines of a credentials file; other values are returned unchanged."""
    if not isinstance(raw, str):
        return raw
    pairs = [line.partition("=") for line in raw.splitlines() if line.strip()]
    if not all(
        name.strip() and sign and value.strip().isprintable() for name, sign, value in pairs
    ):
        raise ValueError("credentials are lines of NAME=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


class Declared(Section):
    """The operator's declaration of a tool. It overrides the server's description."""

    danger: Danger | None = Field(
        None, description="the worst effect that the tool can have; unset: its server's `danger`"
    )
    summary: str = Field(
        "",
        max_length=200,
        description="the summary in prompts; empty: the server's own description, in quotes",
    )


class McpServerSettings(Section):
    """A server, reached by a `command` or at a `url`."""

    command: tuple[str, ...] = Field(
        (),
        description="its program and arguments, run in a sandbox without a network, in /usr or a "
        "folder of sandbox.toolchains",
    )
    url: str = Field(
        "",
        description="http(s)://… of its streamable HTTP endpoint; http.allow and "
        "http.only_allowed apply",
    )
    files: Literal["none", "read", "write"] = Field(
        "none",
        description="a command's access to the workspace's files; read: its changes are discarded "
        "when it ends",
    )
    credentials: Annotated[Mapping[str, SecretStr], BeforeValidator(_read_lines)] = Field(
        default_factory=dict,
        description="by name: environment variables of a command, or headers for a url; in the "
        "file, lines of NAME=value. Not allowed together with files",
    )
    keep_seconds: float = Field(
        900.0,
        ge=0,
        le=86_400,
        description="how long a command without files keeps running for its workspace without a "
        "call; 0: each call starts it again",
    )
    danger: Danger | None = Field(
        None,
        description="default danger of its tools; unset: execute for a command; tools of a url are "
        "always outside",
    )
    tools: Mapping[str, Declared] = Field(
        default_factory=dict, description="declarations of tools, by the server's names of them"
    )
    tenants: tuple[str, ...] = Field(
        (), description="tenants whose agents may use it; empty: all tenants"
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url and self.files != "none":
            raise ValueError(
                "a server at a url cannot access files of a workspace; files must be none"
            )
        if not self.is_persistent and self.keep_seconds and "keep_seconds" in self.model_fields_set:
            raise ValueError(
                "a server at a url, or with access to files, runs for one call only; keep_seconds "
                "is for a command without files"
            )
        if self.files != "none" and self.credentials:
            raise ValueError(
                "a server with access to the workspace's files cannot have credentials: code in "
                "the workspace could read them"
            )
        return self

    @property
    def is_persistent(self) -> bool:
        """Whether it keeps running for the next call of its workspace."""
        return bool(self.command) and self.files == "none" and self.keep_seconds > 0

    def named_credentials(self) -> dict[str, str]:
        """Return the credentials as plain text."""
        return {name: value.get_secret_value() for name, value in self.credentials.items()}


ServerName = Annotated[str, Field(pattern="^[a-z][a-z0-9]{0,39}$")]


class McpSettings(Section):
    """The tools `mcp.*`, of MCP servers. `moothall tools take NAME` accepts a server's tools into
    the catalogue. No role has them unless the table of roles grants them.
    """

    servers: Mapping[ServerName, McpServerSettings] = Field(
        default_factory=dict, description="by name; [mcp.servers.NAME] in the file"
    )
    seconds: float = Field(60.0, gt=0, le=3600, description="one call, the server's start included")


# The family `mcp`.


MAX_SERVERS = 16
"""The number of persistent servers of one process; a further one ends the least recently used one.
"""


class McpFamily(Family[McpSettings]):
    """`mcp.<server>.<tool>`: the tools that the operator accepted from the configured servers."""

    section = "mcp"
    kind = McpSettings

    def __init__(self, max_servers: int = MAX_SERVERS) -> None:
        self._max_servers = max_servers

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
            settings.sandbox,
            mcp,
            WebFamily().own_settings(settings),
            accepted_tools(settings, mcp),
            self._max_servers,
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
