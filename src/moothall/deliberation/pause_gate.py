"""The gate at which a paused deliberation stops: between turns, with no model call running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class PauseGate:
    """A gate for the turns of one run of a deliberation. While closed, no new turn starts; running
    turns finish.
    """

    def __init__(self) -> None:
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._running = 0

    @property
    def closed(self) -> bool:
        """True if no turn may start."""
        return not self._open.is_set()

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Wait until turns may start, and hold one."""
        await self._open.wait()
        with self.hold():
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold work that must not be interrupted, within a turn or outside of turns."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def close_and_drain(self) -> None:
        """Let no further turn start, and return once nothing is running."""
        self._open.clear()
        await self._idle.wait()
