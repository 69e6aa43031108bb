"""Calls of the client that lose no cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def heed_cancel(call: Awaitable[T]) -> T:
    """Return what a call of the client returns; a cancellation that got lost in it is raised all the same.

    Every call of the client that may wait goes through here. The client waits with `asyncio.wait_for`, which
    on Python 3.11 returns the answer and forgets the cancellation when both come in the same turn of the
    loop, and its writes swallow one outright. What is lost so never comes again, and a loop goes on for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        # Compared, not just asked: a task that cleans up after its cancellation may still call.
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
