"""One reader for all who wait: thousands may wait for a decision each, and a consumer each would
cost more than the work.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from moothall.errors import BusUnavailable
from moothall.events.nats.stream_store import Stored
from moothall.events.raw_store import Raw

_KEPT = 128


@dataclass(slots=True)
class StreamTail:
    """Reads what comes under `pattern` from the first time that somebody follows, and hands it to
    whom it concerns.
    """

    stored: Stored
    stream: str
    pattern: str
    _waiting: dict[str, set[asyncio.Queue[Raw | None]]] = field(default_factory=dict)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _placed: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: str = ""
    _kept: deque[Raw] = field(default_factory=deque)
    _since: int = sys.maxsize
    """All that is stored after this seq is kept, or still to come."""

    async def run(self) -> None:
        """Read until cancelled."""
        await self._wanted.wait()
        try:
            start = self._since = (await self.stored.state(self.stream)).last_seq
            self._placed.set()
            async with aclosing(
                self.stored.read(self.stream, (self.pattern,), start, None)
            ) as records:
                async for raw in records:
                    self._kept.append(raw)
                    if len(self._kept) > _KEPT:
                        self._since = self._kept.popleft().seq
                    for queue in self._waiting.get(raw.subject, ()):
                        queue.put_nowait(raw)
        except BusUnavailable as error:
            self._closed = error.message
        finally:
            self._closed = self._closed or "the bus was closed"
            self._placed.set()
            for queues in self._waiting.values():
                for queue in queues:
                    queue.put_nowait(None)

    async def _read_stored(self, subject: str, after_seq: int) -> list[Raw]:
        if after_seq >= self._since:
            return [raw for raw in self._kept if raw.subject == subject and raw.seq > after_seq]
        return await self.stored.read_now(self.stream, (subject,), after_seq)

    async def follow(self, subject: str, after_seq: int) -> AsyncGenerator[Raw, None]:
        """Yield what is recorded under a literal subject, then what comes. Raises `BusUnavailable`
        once closed.
        """
        self._wanted.set()
        await self._placed.wait()
        queue: asyncio.Queue[Raw | None] = asyncio.Queue()
        self._waiting.setdefault(subject, set()).add(queue)
        try:
            # Looked up only now: what is stored from here on comes through the queue.
            for raw in await self._read_stored(subject, after_seq):
                yield raw
                after_seq = raw.seq
            while not self._closed:
                raw_or_end = await queue.get()
                if raw_or_end is not None and raw_or_end.seq > after_seq:
                    yield raw_or_end
                    after_seq = raw_or_end.seq
            raise BusUnavailable(self._closed)
        finally:
            self._waiting[subject].discard(queue)
            if not self._waiting[subject]:
                del self._waiting[subject]
