"""Hosts in this process, for one command: nothing is started but their tasks. Other adapters are
`subprocesses` and `ray_fleet`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

HostMain = Callable[[str, Callable[[], None]], Coroutine[Any, Any, None]]
"""Runs a host of this name until cancelled; calls its argument once it is ready."""


Alive = Callable[[], Awaitable[tuple[int, int]]]
"""Returns how many hosts pull work, and how many there should be."""


@asynccontextmanager
async def hosting(hosts: int, main: HostMain) -> AsyncIterator[Alive]:
    """Yield what tells of the hosts, once all are pulling work; they have let go of everything at
    the end.

    A host that ends by itself has a bug: its error ends the body, and comes out in a group.
    """
    waiting: list[Coroutine[Any, Any, object]] = []
    running: list[asyncio.Task[None]] = []

    async def alive() -> tuple[int, int]:
        return sum(not host.done() for host in running), len(running)

    async with asyncio.TaskGroup() as group:
        for number in range(1, hosts + 1):
            ready = asyncio.Event()
            name = f"host-{number}"
            running.append(group.create_task(main(name, ready.set), name=name))
            waiting.append(ready.wait())
        await asyncio.gather(*waiting)
        try:
            yield alive
        finally:
            for host in running:
                host.cancel()
