"""`mcp.*`: tools of MCP servers, called as they were when the operator took them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from moothall.config import SandboxSettings, secret_values
from moothall.domain.secrets import scrub_all
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import CallFailed, NotFound
from moothall.network.destinations import Destinations
from moothall.ports import Workspace
from moothall.toolkits.answering import Output, answer_within
from moothall.toolkits.mcp.settings import McpServerSettings, McpSettings
from moothall.toolkits.mcp.spec import OfferedTool, TakenTool, files_for
from moothall.toolkits.web.family import HttpSettings

if TYPE_CHECKING:  # the SDK costs start time, and few have servers
    from mcp import Client

    from moothall.toolkits.mcp.living import ServerPool

_LACKS = "MCP's library is not installed: pip install 'moothall[mcp]'"


class McpTools:
    """The toolkit of the category `mcp`. `call` is a `ports.Toolkit`. Servers that live on end with
    their workspace, or with `close`.
    """

    def __init__(
        self,
        sandbox: SandboxSettings,
        own: McpSettings,
        http: HttpSettings,
        tools: Sequence[TakenTool] = (),
    ) -> None:
        self._own, self._sandbox = own, sandbox
        self._destinations = Destinations.read(http.allow, only=http.only_allowed)
        self._tools = {one.spec.name: one for one in tools}
        self._secrets = secret_values(own)
        self._slots = asyncio.Semaphore(own.at_once)
        self._server_pool: ServerPool | None = None

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Call it until the call's deadline or `mcp.seconds`. What may have changed something
        elsewhere when its time was over has an unknown outcome.
        """
        known = self._tools[call.tool]
        late = (
            ToolStatus.OUTCOME_UNKNOWN
            if known.spec.outside and "change" in known.spec.tags
            else ToolStatus.TIMEOUT
        )
        return await answer_within(
            call, self._own.seconds, self._output(call, known, workspace, tenant), late=late
        )

    async def close_workspace(self, workspace: str) -> None:
        """End the servers that live for a workspace."""
        if self._server_pool:
            await self._server_pool.close_workspace(workspace)

    async def close(self) -> None:
        """End all servers that live on."""
        if self._server_pool:
            await self._server_pool.close()

    async def _output(
        self, call: ToolCall, known: TakenTool, workspace: Workspace, tenant: str
    ) -> Output:
        async with self._at_hand(known, workspace, tenant) as client:
            from moothall.toolkits.mcp.client import offers_of, run

            now = next(
                (one for one in await offers_of(client) if one.name == known.offer.name), None
            )
            if now is None or now.digest != known.offer.digest:
                what = (
                    "has no such tool any more"
                    if now is None
                    else "describes this tool otherwise than when it was taken"
                )
                raise CallFailed(
                    f"the MCP server {known.server} {what}; `moothall tools take {known.server}` "
                    "takes what it has now"
                )
            output: Output = scrub_all(
                await run(client, now.name, call.arguments), known=self._secrets
            )
        return output

    def _at_hand(
        self, known: TakenTool, workspace: Workspace, tenant: str
    ) -> AbstractAsyncContextManager[Client]:
        """The server of a tool: the one that lives for the workspace, or one for this call."""
        server, name = self._own.servers[known.server], known.server
        if not server.lives_on:
            files = files_for(server, known.spec.danger)
            return self._once(name, None if files == "none" else workspace, keeps=files == "write")
        try:
            from moothall.toolkits.mcp.living import LiveServer, ServerPool
        except ModuleNotFoundError as error:
            raise CallFailed(_LACKS) from error
        server_pool = self._server_pool = self._server_pool or ServerPool(
            self._own.kept, self._slots
        )
        return server_pool.call(
            (tenant, workspace.id, name),
            lambda: LiveServer(
                name,
                lambda ended: self._link(server, None, ended, keeps=False),
                self._own.seconds,
                server.keep_seconds,
            ),
        )

    async def offers(self, name: str) -> tuple[OfferedTool, ...]:
        """Ask a server what it offers now. Raises `NotFound`, `CallFailed`, `Refused`,
        `SandboxUnavailable`.
        """
        if name not in self._own.servers:
            names = ", ".join(self._own.servers) or "none"
            raise NotFound(
                f"no MCP server {name[:60]!r} is set; there are: {names} ([mcp.servers.NAME])"
            )
        try:
            async with (
                asyncio.timeout(self._own.seconds),
                self._client(name, None, keeps=False) as client,
            ):
                from moothall.toolkits.mcp.client import offers_of

                return await offers_of(client)
        except TimeoutError as error:
            raise CallFailed(
                f"the MCP server {name} gave no whole list within {self._own.seconds:g} s "
                "(mcp.seconds)"
            ) from error

    @asynccontextmanager
    async def _once(
        self, name: str, workspace: Workspace | None, *, keeps: bool
    ) -> AsyncIterator[Client]:
        async with self._slots, self._client(name, workspace, keeps=keeps) as client:
            yield client

    @asynccontextmanager
    async def _client(
        self, name: str, workspace: Workspace | None, *, keeps: bool
    ) -> AsyncIterator[Client]:
        server, own = self._own.servers[name], self._own
        try:
            from moothall.toolkits.mcp.client import connect
            from moothall.toolkits.mcp.links import LinkEnd
        except ModuleNotFoundError as error:
            raise CallFailed(_LACKS) from error
        ended = LinkEnd()
        async with connect(
            name, lambda told: self._link(server, workspace, told, keeps=keeps), own.seconds, ended
        ) as client:
            yield client

    def _link(
        self, server: McpServerSettings, workspace: Workspace | None, ended: Any, *, keeps: bool
    ) -> Any:
        from moothall.toolkits.mcp import links

        most = self._own.receive_bytes
        if server.url:
            return links.over_http(server, self._destinations, most, ended)
        if workspace is None:
            return links.in_sandbox(server, self._sandbox, most, ended)
        return links.in_workspace(server, workspace, self._own.seconds, most, ended, keeps=keeps)
