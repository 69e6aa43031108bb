"""Events for the suites of the bus, and who takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moothall import ports
from moothall.bus import dead
from moothall.domain.event import Event, EventType, Recorded, new_event


def seat(number: int, task: str = "task-1", **data: Any) -> Event:
    """Return the `number`-th turn of a seat."""
    return new_event(EventType.SEAT_TURN, task, {"task_id": task, "seat": "agent-dev-001", **data}, ordinal=number)


def requested(task: str) -> Event:
    """Return a request for a deliberation."""
    return new_event(EventType.DELIBERATION_REQUESTED, task, {"task_id": task})


@asynccontextmanager
async def consuming(bus: Any, durable: str, handler: ports.Handler, **how: Any) -> AsyncIterator[None]:
    """Take messages of a durable consumer until the context ends."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bus.consume(durable, handler, **how))
        try:
            yield
        finally:
            task.cancel()


async def seen(queue: asyncio.Queue[Recorded], count: int) -> list[Recorded]:
    """Wait for so many events."""
    async with asyncio.timeout(20):
        return [await queue.get() for _ in range(count)]


async def letters(bus: Any, count: int) -> list[dead.DeadLetter]:
    """Wait for so many dead letters."""
    async with asyncio.timeout(20):
        while True:
            found = [letter async for letter in dead.letters(bus)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)
