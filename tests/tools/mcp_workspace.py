"""A gateway in front of a workspace with tools of our own MCP servers, honest ones and others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from moothall.authorization.audit import AuditLog
from moothall.authorization.checks import CallContext, Meter
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import GatewayLimits
from moothall.authorization.rules import Rules
from moothall.config import Settings
from moothall.domain.ids import LOCAL, TaskKey
from moothall.domain.tool import Grant, ToolCall, ToolResult
from moothall.settings import load_settings
from moothall.toolkits.mcp import McpFamily
from moothall.toolkits.mcp.spec import read_offers, write_accepted_tools
from moothall.tools.spec import Rate
from moothall.workspace.workspace import OverlayWorkspace
from support.local import local
from support.tool_gateway import Facts, in_seconds

SUPPORT = Path(__file__).parents[1] / "support"
VENV = Path(sys.prefix)
FAMILY = McpFamily()


def put_servers(folder: Path) -> Path:
    """Put the servers into a folder that sandboxes can see, and return the folder."""
    for name in ("mcp_server.py", "mcp_hostile.py"):
        shutil.copy(SUPPORT / name, folder)
    folder.chmod(0o755)
    return folder


def settings_with(
    folder: Path, tools: Path, servers: Mapping[str, Any], **overrides: Any
) -> Settings:
    sandbox = overrides.pop("sandbox", {"toolchains": (VENV, tools)})
    named = {"servers": servers, **overrides.pop("mcp", {})}
    return load_settings(data_dir=folder / "data", sandbox=sandbox, mcp=named, **overrides)


def honest(folder: Path, **fields: Any) -> dict[str, Any]:
    return {"command": ["python", f"{folder}/mcp_server.py"], **fields}


def hostile(folder: Path, *arguments: str, **fields: Any) -> dict[str, Any]:
    return {"command": ["python", "-S", f"{folder}/mcp_hostile.py", *arguments], **fields}


@dataclass
class McpWorkspace:
    """A gateway in front of a workspace, with the tools accepted from the servers."""

    tool_gateway: ToolGateway
    workspace: OverlayWorkspace
    facts: Facts
    audit: Path
    left: Any
    toolkit: Any
    _numbers: Any = field(default_factory=count)

    async def call(self, tool: str, *, grant: str = "mcp.*", **arguments: Any) -> ToolResult:
        name = self.workspace.id
        seat = CallContext(
            LOCAL,
            TaskKey("task-1"),
            "agent-dev-001",
            "dev",
            Grant((grant,)),
            self.workspace,
            name,
            in_seconds(600),
            meter=Meter(),
        )
        call = ToolCall(f"r-{next(self._numbers)}", tool, arguments, in_seconds(120))
        return await self.tool_gateway.call(self.tool_gateway.with_token(seat), call)


@asynccontextmanager
async def open_mcp_workspace(
    settings: Settings, folder: Path, breaker_failures: int = 1000, family: McpFamily = FAMILY
) -> AsyncIterator[McpWorkspace]:
    """Accept the tools that the servers offer, and open a workspace."""
    mcp_settings = FAMILY.own_settings(settings)
    for name in mcp_settings.servers:
        offers = read_offers(name, mcp_settings, await FAMILY.tools(settings).offers(name))
        assert not offers.refused
        write_accepted_tools(settings, name, offers.tools)
    catalogue = {spec.name: replace(spec, own_rate=Rate(0, 0)) for spec in FAMILY.specs(settings)}
    async with (
        local(folder, toolchains=settings.sandbox.toolchains) as app,
        AuditLog(folder / "data", "host-1") as audit,
        family.open(settings) as opened,
    ):
        facts = Facts()
        rules = Rules(catalogue=catalogue, toolkits={"mcp": opened.toolkit})
        async with app.workspaces.open(await app.prepared(), "ws-1") as workspace:
            tool_gateway = ToolGateway(
                audit,
                facts.publish,
                rules,
                limits=GatewayLimits(breaker_failures=breaker_failures),
            )
            yield McpWorkspace(
                tool_gateway,
                workspace,
                facts,
                folder / "data" / "audit" / "local" / "host-1.jsonl",
                opened.close_workspace,
                cast("Any", opened.toolkit).__self__,
            )
