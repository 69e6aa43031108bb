"""Hosts in this process, for one command: nothing is started but their tasks. The other adapter is `ray_fleet`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

HostMain = Callable[[str, Callable[[], None]], Coroutine[Any, Any, None]]
"""Runs a host of this name until cancelled; calls its argument once it is ready."""


class Hosts:
    """The hosts of this process."""

    def __init__(self, running: Sequence[asyncio.Task[None]]) -> None:
        self._running = running
        self.pids = (os.getpid(),) * len(running)

    async def alive(self) -> tuple[int, int]:
        """Return how many hosts pull work, and how many there should be."""
        return sum(not host.done() for host in self._running), len(self._running)


@asynccontextmanager
async def hosting(hosts: int, main: HostMain) -> AsyncIterator[Hosts]:
    """Yield the hosts once all are pulling work; they have let go of everything at the end.

    A host that ends by itself has a bug: its error ends the body, and comes out in a group.
    """
    async with asyncio.TaskGroup() as group:
        waiting, running = [], []
        for number in range(1, hosts + 1):
            ready = asyncio.Event()
            name = f"host-{number}"
            running.append(group.create_task(main(name, ready.set), name=name))
            waiting.append(ready.wait())
        await asyncio.gather(*waiting)
        try:
            yield Hosts(running)
        finally:
            for host in running:
                host.cancel()
