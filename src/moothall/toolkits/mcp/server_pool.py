"""Persistent MCP servers: each runs for a workspace between calls, so that its state, such as a
login, is available to the next call.

Each connection has a task of its own, because it must end in the task in which it began. A server
that has ended stays registered until the next call fails with the reason. Its state is lost, and a
call that silently got a new server might do something unintended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from mcp import Client

from moothall.errors import CallFailed, MoothallError
from moothall.toolkits.mcp.links import Link, LinkEnd, connect, translated_errors

Key = tuple[str, str, str]
"""Tenant, workspace, server."""


class LiveServer:
    """A persistent server. `call_lock` is held by the call that it works for."""

    def __init__(self, name: str, link: Link, seconds: float, keep_seconds: float) -> None:
        self.link_end, self.call_lock, self.last_used = LinkEnd(), asyncio.Lock(), monotonic()
        self._name, self._seconds, self._keep_seconds = name, seconds, keep_seconds
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._keep_connected(link), name=f"mcp server {name}")

    def end(self, reason: str) -> None:
        """End the server. The reason is reported to its next call, unless it ended by itself."""
        self.link_end.record_end(reason)
        if not self.client.done():  # it is connecting, which would have to finish first
            self.task.cancel()

    def has_ended(self) -> bool:
        """Return whether it has ended or is ending."""
        return self.link_end.ended.is_set()

    async def _keep_connected(self, link: Link) -> None:
        try:
            async with connect(self._name, link, self._seconds, self.link_end) as client:
                self.client.set_result(client)
                await self._wait_unused()
        except MoothallError as error:
            self._fail(error)
        finally:
            self._fail(
                CallFailed(
                    f"the MCP server {self._name}: {self.link_end.end_reason or 'it was ended'}"
                )
            )
            self.end("it was ended")

    def _fail(self, error: MoothallError) -> None:
        if not self.client.done():
            self.client.set_exception(error)
            self.client.exception()  # retrieved, because perhaps nobody waits for it

    async def _wait_unused(self) -> None:
        """Return when it is ended, has ended by itself, or was unused for long enough."""
        while (
            remaining := self.last_used + self._keep_seconds - monotonic()
        ) > 0 or self.call_lock.locked():
            try:
                await asyncio.wait_for(self.link_end.ended.wait(), max(remaining, 1.0))
            except TimeoutError:
                continue
            return
        self.end(f"nobody called it for {self._keep_seconds:g} s (keep_seconds)")


class ServerPool:
    """The servers of a process, at most `max_servers`. If there are too many, the least recently
    used one ends.
    """

    def __init__(self, max_servers: int, slots: asyncio.Semaphore) -> None:
        self._max_servers, self._slots = max_servers, slots
        self._servers: dict[Key, LiveServer] = {}
        self._ending: dict[asyncio.Task[None], str] = {}
        """Servers that are no longer registered but have not ended: task → workspace."""

    @asynccontextmanager
    async def call(self, key: Key, start: Callable[[], LiveServer]) -> AsyncIterator[Client]:
        """Yield a server for one call. Raises `CallFailed` if it ended since the last call, or ends
        now; the next call starts another one.
        """
        server = self._servers.get(key) or self._start(key, start)
        async with server.call_lock, self._slots:
            if server.has_ended():
                self._forget(key, server)
                raise CallFailed(
                    f"the MCP server {key[2]} has ended since its last call: "
                    f"{server.link_end.end_reason}; "
                    "its state is lost, and the next call starts it anew"
                )
            try:
                server.link_end.bytes_left = server.link_end.max_bytes
                with translated_errors(key[2], server.link_end):
                    yield await asyncio.shield(server.client)
            except asyncio.CancelledError:  # it may never answer, so later calls must not wait
                server.end("its last call took too long")
                self._forget(key, server)
                raise
            except MoothallError:  # the error is reported to this call
                if server.has_ended():
                    self._forget(key, server)
                raise
            finally:
                server.last_used = monotonic()

    async def close_workspace(self, workspace: str) -> None:
        """End the servers of a workspace that ends."""
        await self._end(
            [key for key in self._servers if key[1] == workspace],
            "its workspace has ended",
            workspace,
        )

    async def close(self) -> None:
        """End all servers."""
        await self._end(list(self._servers), "the server closes")

    async def _end(self, keys: list[Key], reason: str, workspace: str = "") -> None:
        for key in keys:
            self._forget(key, self._servers[key], reason)
        if ending := [task for task, owner in self._ending.items() if workspace in {"", owner}]:
            await asyncio.wait(ending)

    def _start(self, key: Key, start: Callable[[], LiveServer]) -> LiveServer:
        running = [server for server in self._servers.values() if not server.has_ended()]
        if len(running) >= self._max_servers:
            idle = [server for server in running if not server.call_lock.locked()]
            if not idle:
                raise CallFailed(
                    f"all {self._max_servers} MCP servers are busy; try again when one of them "
                    "is idle"
                )
            min(idle, key=lambda server: server.last_used).end(
                f"it was replaced by another one, because {self._max_servers} of them run"
            )
        return self._servers.setdefault(key, start())

    def _forget(self, key: Key, server: LiveServer, reason: str = "it was ended") -> None:
        if self._servers.get(key) is server:
            del self._servers[key]
            server.end(reason)
            self._ending[server.task] = key[1]
            server.task.add_done_callback(lambda task: self._ending.pop(task, None))
