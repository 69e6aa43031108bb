"""`mcp.*`: tools of MCP servers, called as they were described when the operator accepted them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from moothall.config import SandboxSettings, secret_values
from moothall.domain.text import scrub_all
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import CallFailed, NotFound
from moothall.network.destinations import Destinations
from moothall.ports import Workspace
from moothall.toolkits.calls import ToolOutput, run_within
from moothall.toolkits.mcp import MAX_SERVERS, McpServerSettings, McpSettings
from moothall.toolkits.mcp.spec import AcceptedTool, OfferedTool, file_access
from moothall.toolkits.web import HttpSettings

if TYPE_CHECKING:  # the SDK takes time to import, and few deployments have servers
    from mcp import Client

    from moothall.toolkits.mcp.links import ServerPool

_CONCURRENT_CALLS = 4
_RECEIVE_BYTES = 8_000_000
"""A server may send this much for one call. A server that sends more is ended."""
_NOT_INSTALLED = "MCP's library is not installed: pip install 'moothall[tools]'"


class McpTools:
    """The toolkit of the category `mcp`. `call` is a `ports.Toolkit`. Persistent servers end with
    their workspace, or with `close`.
    """

    def __init__(
        self,
        sandbox: SandboxSettings,
        mcp: McpSettings,
        http: HttpSettings,
        tools: Sequence[AcceptedTool] = (),
        max_servers: int = MAX_SERVERS,
    ) -> None:
        self._mcp, self._sandbox = mcp, sandbox
        self._destinations = Destinations.read(http.allow, only=http.only_allowed)
        self._tools = {tool.spec.name: tool for tool in tools}
        self._secrets = secret_values(mcp)
        self._slots = asyncio.Semaphore(_CONCURRENT_CALLS)
        self._max_servers = max_servers
        self._server_pool: ServerPool | None = None

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Call a tool until the call's deadline or for `mcp.seconds`. If a tool that may change
        something elsewhere times out, its outcome is unknown.
        """
        tool = self._tools[call.tool]
        timeout_status = (
            ToolStatus.OUTCOME_UNKNOWN
            if tool.spec.outside and "change" in tool.spec.tags
            else ToolStatus.TIMEOUT
        )
        return await run_within(
            call,
            self._mcp.seconds,
            self._output(call, tool, workspace, tenant),
            timeout_status=timeout_status,
        )

    async def close_workspace(self, workspace: str) -> None:
        """End the servers of a workspace."""
        if self._server_pool:
            await self._server_pool.close_workspace(workspace)

    async def close(self) -> None:
        """End all persistent servers."""
        if self._server_pool:
            await self._server_pool.close()

    async def _output(
        self, call: ToolCall, tool: AcceptedTool, workspace: Workspace, tenant: str
    ) -> ToolOutput:
        async with self._connect(tool, workspace, tenant) as client:
            from moothall.toolkits.mcp.links import call_tool, list_tools

            offer = next(
                (
                    candidate
                    for candidate in await list_tools(client)
                    if candidate.name == tool.offer.name
                ),
                None,
            )
            if offer is None or offer.digest != tool.offer.digest:
                difference = (
                    "no longer has this tool"
                    if offer is None
                    else "has changed the description of this tool since it was accepted"
                )
                raise CallFailed(
                    f"the MCP server {tool.server} {difference}; `moothall tools take "
                    f"{tool.server}` accepts its current tools"
                )
            output: ToolOutput = scrub_all(
                await call_tool(client, offer.name, call.arguments), known_secrets=self._secrets
            )
        return output

    def _connect(
        self, tool: AcceptedTool, workspace: Workspace, tenant: str
    ) -> AbstractAsyncContextManager[Client]:
        """Return a connection to the server of a tool: the workspace's persistent server, or one
        for this call.
        """
        server, name = self._mcp.servers[tool.server], tool.server
        if not server.is_persistent:
            files = file_access(server, tool.spec.danger)
            return self._connect_once(
                name, None if files == "none" else workspace, keep_changes=files == "write"
            )
        try:
            from moothall.toolkits.mcp.links import LiveServer, ServerPool
        except ModuleNotFoundError as error:
            raise CallFailed(_NOT_INSTALLED) from error
        server_pool = self._server_pool = self._server_pool or ServerPool(
            self._max_servers, self._slots
        )
        return server_pool.call(
            (tenant, workspace.id, name),
            lambda: LiveServer(
                name,
                lambda link_end: self._link(server, None, link_end, keep_changes=False),
                self._mcp.seconds,
                server.keep_seconds,
            ),
        )

    async def offers(self, name: str) -> tuple[OfferedTool, ...]:
        """Return the tools that a server offers now. Raises `NotFound`, `CallFailed`, `Refused`,
        `SandboxUnavailable`.
        """
        if name not in self._mcp.servers:
            names = ", ".join(self._mcp.servers) or "none"
            raise NotFound(
                f"no MCP server {name[:60]!r} is configured ([mcp.servers.NAME]); the servers are: "
                f"{names}"
            )
        try:
            async with (
                asyncio.timeout(self._mcp.seconds),
                self._client(name, None, keep_changes=False) as client,
            ):
                from moothall.toolkits.mcp.links import list_tools

                return await list_tools(client)
        except TimeoutError as error:
            raise CallFailed(
                f"the MCP server {name} did not list its tools within {self._mcp.seconds:g} s "
                "(mcp.seconds)"
            ) from error

    @asynccontextmanager
    async def _connect_once(
        self, name: str, workspace: Workspace | None, *, keep_changes: bool
    ) -> AsyncIterator[Client]:
        async with self._slots, self._client(name, workspace, keep_changes=keep_changes) as client:
            yield client

    @asynccontextmanager
    async def _client(
        self, name: str, workspace: Workspace | None, *, keep_changes: bool
    ) -> AsyncIterator[Client]:
        server, mcp = self._mcp.servers[name], self._mcp
        try:
            from moothall.toolkits.mcp.links import LinkEnd, connect
        except ModuleNotFoundError as error:
            raise CallFailed(_NOT_INSTALLED) from error
        link_end = LinkEnd()
        async with connect(
            name,
            lambda end_link: self._link(server, workspace, end_link, keep_changes=keep_changes),
            mcp.seconds,
            link_end,
        ) as client:
            yield client

    def _link(
        self,
        server: McpServerSettings,
        workspace: Workspace | None,
        link_end: Any,
        *,
        keep_changes: bool,
    ) -> Any:
        from moothall.toolkits.mcp import links

        if server.url:
            return links.http_link(server, self._destinations, _RECEIVE_BYTES, link_end)
        if workspace is None:
            return links.sandbox_link(server, self._sandbox, _RECEIVE_BYTES, link_end)
        return links.workspace_link(
            server,
            workspace,
            self._mcp.seconds,
            _RECEIVE_BYTES,
            link_end,
            keep_changes=keep_changes,
        )
