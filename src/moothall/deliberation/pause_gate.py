"""Where a deliberation that is paused stops: between turns, with no call of a model under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class PauseGate:
    """What goes on in one run of a deliberation. While it is shut no turn begins; those under way
    end, and then it is `quiet`.
    """

    def __init__(self) -> None:
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._running_turns = 0

    @property
    def closed(self) -> bool:
        """Whether no turn may begin."""
        return not self._open.is_set()

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Wait until turns may begin, and hold the place for one."""
        await self._open.wait()
        with self.hold():
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the place for what is not stopped half-way, in a turn or beside any."""
        self._running_turns += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running_turns -= 1
            if not self._running_turns:
                self._idle.set()

    async def close_and_drain(self) -> None:
        """Let no turn begin any more, and return once nothing is under way."""
        self._open.clear()
        await self._idle.wait()
