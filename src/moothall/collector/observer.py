"""What is under way, followed from the log: for a process that decides nothing itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from cachetools import FIFOCache

from moothall.collector.fold import DeliberationState, fold
from moothall.domain.event import Event, EventType
from moothall.domain.ids import check_key
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import Deliberation
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest, Temporary
from moothall.ports import Bus
from moothall.telemetry import get_logger

log = get_logger(__name__)

_CHANNELS = (Channel.RESULTS, Channel.RESPONSES, Channel.WORDS)
_OPEN = {DeliberationStatus.PENDING, DeliberationStatus.IN_PROGRESS}
_REMEMBERED = 10_000
_AGAIN_SECONDS = 1.0


class Observer:
    """Memory: the facts of the deliberations that are under way, and the ids of the last decided
    ones.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._states: dict[str, DeliberationState] = {}
        self._decided: FIFOCache[str, None] = FIFOCache(_REMEMBERED)

    @property
    def under_way(self) -> int:
        """Deliberations in memory."""
        return len(self._states)

    def states(self) -> tuple[DeliberationState, ...]:
        """Return what is known of those in memory."""
        return tuple(self._states.values())

    def deliberations(self) -> tuple[Deliberation, ...]:
        """Return those in memory: asked for and not decided."""
        return tuple(
            state.requested.value for state in self._states.values() if state.requested is not None
        )

    async def run(self, last_seq: int) -> None:
        """Take up what is open, then follow what comes after `last_seq`, the log's end as it was
        before, until cancelled.
        """
        for key in await self._bus.keys():
            document = await self._bus.get(key)
            if document is not None and document.get("status") in _OPEN:
                await self._load(key)
        async with aclosing(
            self._bus.follow([channel.all for channel in _CHANNELS], last_seq)
        ) as records:
            async for recorded in records:
                await self._see(recorded.event)

    async def _see(self, event: Event) -> None:
        key = event.data.get("task_id")
        if not isinstance(key, str) or key in self._decided:
            return
        try:
            check_key(key, "task_id")
        except InvalidRequest:
            return
        if event.type is EventType.DELIBERATION_DECIDED:
            self._close(key)
        elif key in self._states or event.type is EventType.DELIBERATION_REQUESTED:
            self._fold(key, event)
        else:  # it was asked for before we came
            await self._load(key)

    async def _load(self, key: str) -> None:
        while True:
            try:
                return await self._read(key)
            except Temporary as error:
                log.warning(
                    "could not look yet", task_id=key, code=error.code, reason=error.message
                )
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _read(self, key: str) -> None:
        async for recorded in self._bus.replay([channel.of(key) for channel in _CHANNELS]):
            if recorded.event.type is EventType.DELIBERATION_DECIDED:
                self._close(key)
                return
            self._fold(key, recorded.event)
        if key not in self._states or self._states[key].requested is None:
            self._close(key)  # nobody asked for it

    def _fold(self, key: str, event: Event) -> None:
        try:
            self._states[key] = fold(self._states.get(key), event)
        except InvalidRequest:
            return  # the collector says so

    def _close(self, key: str) -> None:
        self._states.pop(key, None)
        self._decided[key] = None
