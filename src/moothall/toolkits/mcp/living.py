"""Servers that live on between calls, each for one workspace: what they remember, such as a login,
is there for its next call.

A task of its own holds each, since a link ends in the task in which it began. One that has ended
stays in the books until a call has been told so: what was done with its help is gone, and a call
that took a new one for it would do something else than it was meant to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from mcp import Client

from moothall.errors import CallFailed, MoothallError
from moothall.toolkits.mcp.client import Link, connect, translated_errors
from moothall.toolkits.mcp.links import LinkEnd

Key = tuple[str, str, str]
"""Tenant, workspace, server."""


class LiveServer:
    """One of them. `turn` is held by the call that it works for."""

    def __init__(self, name: str, link: Link, seconds: float, keep_seconds: float) -> None:
        self.ended, self.turn, self.used = LinkEnd(), asyncio.Lock(), monotonic()
        self._name, self._seconds, self._keep = name, seconds, keep_seconds
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(link), name=f"mcp server {name}")

    def end(self, why: str) -> None:
        """Let it end, for a reason that its next call is told where it did not end by itself."""
        self.ended.because(why)
        if not self.client.done():  # it begins, and would end that first, however long it takes
            self.task.cancel()

    def over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.ended.over.is_set()

    async def _hold(self, link: Link) -> None:
        try:
            async with connect(self._name, link, self._seconds, self.ended) as client:
                self.client.set_result(client)
                await self._wait_unused()
        except MoothallError as error:
            self._fail(error)
        finally:
            self._fail(
                CallFailed(f"the MCP server {self._name}: {self.ended.why or 'it was ended'}")
            )
            self.end("it was ended")

    def _fail(self, error: MoothallError) -> None:
        if not self.client.done():
            self.client.set_exception(error)
            self.client.exception()  # it is told where somebody waits for it; nobody has to

    async def _wait_unused(self) -> None:
        """Return when it is to end, has ended by itself, or nobody used it for long enough."""
        while (left := self.used + self._keep - monotonic()) > 0 or self.turn.locked():
            try:
                await asyncio.wait_for(self.ended.over.wait(), max(left, 1.0))
            except TimeoutError:
                continue
            return
        self.end(f"nobody called it for {self._keep:g} s (keep_seconds)")


class ServerPool:
    """Those of one process, at most `most`. Where there is no room, the one that nobody has used
    for the longest ends.
    """

    def __init__(self, most: int, slots: asyncio.Semaphore) -> None:
        self._most, self._slots = most, slots
        self._living: dict[Key, LiveServer] = {}
        self._going: dict[
            asyncio.Task[None], str
        ] = {}  # those out of the books that still end, by workspace

    @asynccontextmanager
    async def call(self, key: Key, start: Callable[[], LiveServer]) -> AsyncIterator[Client]:
        """Have a server for one call. Raises `CallFailed` where it ended since the last one, or
        does now; the next call starts another.
        """
        living = self._living.get(key) or self._start(key, start)
        async with living.turn, self._slots:
            if living.over():
                self._forget(key, living)
                raise CallFailed(
                    f"the MCP server {key[2]} has ended since its last call: {living.ended.why}; "
                    "what it remembered is gone, and the next call starts it anew"
                )
            try:
                living.ended.left = living.ended.most
                with translated_errors(key[2], living.ended):
                    yield await asyncio.shield(living.client)
            except (
                asyncio.CancelledError
            ):  # it may never answer: whoever calls next is not to wait for that, too
                living.end("its last call took too long")
                self._forget(key, living)
                raise
            except MoothallError:  # which says so
                if living.over():
                    self._forget(key, living)
                raise
            finally:
                living.used = monotonic()

    async def close_workspace(self, workspace: str) -> None:
        """End those of a workspace, which ends itself."""
        await self._end(
            [key for key in self._living if key[1] == workspace],
            "its workspace has ended",
            workspace,
        )

    async def close(self) -> None:
        """End all."""
        await self._end(list(self._living), "the server closes")

    async def _end(self, keys: list[Key], why: str, workspace: str = "") -> None:
        for key in keys:
            self._forget(key, self._living[key], why)
        if going := [task for task, whose in self._going.items() if workspace in {"", whose}]:
            await asyncio.wait(going)

    def _start(self, key: Key, start: Callable[[], LiveServer]) -> LiveServer:
        up = [one for one in self._living.values() if not one.over()]
        if len(up) >= self._most:
            idle = [one for one in up if not one.turn.locked()]
            if not idle:
                raise CallFailed(
                    f"{self._most} MCP servers are at work (mcp.kept); try again when one of them "
                    "is done"
                )
            min(idle, key=lambda one: one.used).end("another one needed its place (mcp.kept)")
        return self._living.setdefault(key, start())

    def _forget(self, key: Key, living: LiveServer, why: str = "it was ended") -> None:
        if self._living.get(key) is living:
            del self._living[key]
            living.end(why)
            self._going[living.task] = key[1]
            living.task.add_done_callback(lambda task: self._going.pop(task, None))
