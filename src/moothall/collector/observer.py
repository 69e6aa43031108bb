"""Active deliberations, followed from the log by a process that makes no decisions."""

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
_MAX_DECIDED_IDS = 10_000
_RETRY_SECONDS = 1.0


class Observer:
    """An observer of active deliberations.

    Memory: the facts of active deliberations, and the ids of recently decided ones.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._states: dict[str, DeliberationState] = {}
        self._decided: FIFOCache[str, None] = FIFOCache(_MAX_DECIDED_IDS)

    @property
    def active_count(self) -> int:
        """The number of active deliberations in memory."""
        return len(self._states)

    def states(self) -> tuple[DeliberationState, ...]:
        """Return the states of the active deliberations."""
        return tuple(self._states.values())

    def deliberations(self) -> tuple[Deliberation, ...]:
        """Return the active deliberations: requested and not decided."""
        return tuple(
            state.requested.value for state in self._states.values() if state.requested is not None
        )

    async def run(self, last_seq: int) -> None:
        """Load open deliberations, then follow the log until cancelled.

        last_seq: the end of the log before the open deliberations are listed.
        """
        for key in await self._bus.keys():
            document = await self._bus.get(key)
            if document is not None and document.get("status") in _OPEN:
                await self._load(key)
        async with aclosing(
            self._bus.follow([channel.all for channel in _CHANNELS], last_seq)
        ) as records:
            async for recorded in records:
                await self._handle(recorded.event)

    async def _handle(self, event: Event) -> None:
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
        else:  # requested before this observer started
            await self._load(key)

    async def _load(self, key: str) -> None:
        while True:
            try:
                return await self._read(key)
            except Temporary as error:
                log.warning(
                    "could not load a deliberation yet",
                    task_id=key,
                    code=error.code,
                    reason=error.message,
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, key: str) -> None:
        async for recorded in self._bus.replay([channel.of(key) for channel in _CHANNELS]):
            if recorded.event.type is EventType.DELIBERATION_DECIDED:
                self._close(key)
                return
            self._fold(key, recorded.event)
        if key not in self._states or self._states[key].requested is None:
            self._close(key)  # it was never requested

    def _fold(self, key: str, event: Event) -> None:
        try:
            self._states[key] = fold(self._states.get(key), event)
        except InvalidRequest:
            return  # the collector reports it

    def _close(self, key: str) -> None:
        self._states.pop(key, None)
        self._decided[key] = None
