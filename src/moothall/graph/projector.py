"""Project the log into the graph in batches, from the position that the graph itself stores.

Decisions never wait for the projector. The graph contains nothing that is not in the log: after a
crash, the projector continues from the graph's position, and while the graph is unavailable, it
falls behind but stays correct.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from moothall.config import GraphSettings as Settings
from moothall.domain.event import Recorded
from moothall.errors import GraphUnavailable
from moothall.graph.store import CypherGraph
from moothall.ports import Log
from moothall.telemetry import get_logger

log = get_logger(__name__)

BATCH_EVENTS = 2000
"""Events that are written in one transaction."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0


class Projector:
    """The only writer of a graph. It calls `is_writer` before each batch, which returns whether
    this process may still write.
    """

    def __init__(
        self,
        log_: Log,
        graph: CypherGraph,
        settings: Settings,
        *,
        batch_size: int = BATCH_EVENTS,
        pause_seconds: float = _FIRST_PAUSE_SECONDS,
        is_writer: Callable[[], bool] = lambda: True,
    ) -> None:
        self._log = log_
        self._graph = graph
        self._settings = settings
        self._batch_size = batch_size
        self._pause_seconds = pause_seconds
        self._is_writer = is_writer
        self._written = 0
        self._progress = asyncio.Condition()

    @property
    def written(self) -> int:
        """The seq up to which the log is in the graph."""
        return self._written

    async def run(self, last_seq: int) -> None:
        """Project until cancelled. `last_seq` is the current end of the log: a graph that is ahead
        of it belongs to another log.
        """
        self._written = await self._start(last_seq)
        waiting: asyncio.Queue[Recorded] = asyncio.Queue(2 * self._batch_size)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(waiting, self._written), name="graph-read")
            group.create_task(self._write(waiting), name="graph-write")

    async def catch_up(
        self, last_seq: int, on_batch: Callable[[int], None] = lambda _: None
    ) -> int:
        """Project what is recorded now and return the number of events. `on_batch` is called with
        the last seq of each batch.
        """
        self._written = await self._start(last_seq)
        count, batch = 0, list[Recorded]()
        async with aclosing(self._log.replay(after_seq=self._written)) as records:
            async for recorded in records:
                batch.append(recorded)
                if len(batch) == self._batch_size:
                    await self._project(batch)
                    count += len(batch)
                    on_batch(batch[-1].seq)
                    batch = []
        if batch:
            await self._project(batch)
            on_batch(batch[-1].seq)
        return count + len(batch)

    async def wait_written(self, seq: int) -> None:
        """Return once the log is written up to `seq`."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._written >= seq)

    async def _start(self, last_seq: int) -> int:
        position = await self._position()
        if position <= last_seq:
            return position
        log.warning(
            "the graph belongs to another log, since it is ahead of this one; projecting again",
            position=position,
            last_seq=last_seq,
        )
        return 0

    async def _read(self, waiting: asyncio.Queue[Recorded], after_seq: int) -> None:
        async with aclosing(self._log.follow(after_seq=after_seq)) as records:
            async for recorded in records:
                await waiting.put(recorded)

    async def _write(self, waiting: asyncio.Queue[Recorded]) -> None:
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(self._settings.pace_seconds)
            while len(batch) < self._batch_size and not waiting.empty():
                batch.append(waiting.get_nowait())
            await self._project_until_written(batch)

    async def _project_until_written(self, batch: Sequence[Recorded]) -> None:
        """Retry until the batch is written, even if the graph is unavailable for a long time. After
        a failure, write half as many events at a time, since the batch may be too large for one
        transaction.
        """
        pause, size = self._pause_seconds, len(batch)
        while batch:
            try:
                await self._project(batch[:size])
            except GraphUnavailable as error:
                log.warning(
                    "the graph is unavailable and falls behind; trying again",
                    events=len(batch),
                    retry_seconds=pause,
                    reason=error.message,
                )
                await asyncio.sleep(pause)
                pause, size = min(2 * pause, _MAX_PAUSE_SECONDS), max(size // 2, 1)
            else:
                batch, size, pause = batch[size:], 2 * size, self._pause_seconds

    async def _position(self) -> int:
        pause = self._pause_seconds
        while True:
            try:
                return await self._graph.position()
            except GraphUnavailable as error:
                log.warning(
                    "the graph does not answer; trying again",
                    retry_seconds=pause,
                    reason=error.message,
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _project(self, batch: Sequence[Recorded]) -> None:
        if not self._is_writer():
            raise GraphUnavailable("another process writes the graph now")
        await self._graph.project(batch)
        async with self._progress:
            self._written = max(self._written, batch[-1].seq)
            self._progress.notify_all()
