"""Active deliberations, followed from the log by a process that makes no decisions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from cachetools import FIFOCache

from moothall.collector.fold import DeliberationState, fold
from moothall.domain.event import Event, EventType
from moothall.domain.ids import TaskKey, check_task_key
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
        self._states: dict[TaskKey, DeliberationState] = {}
        self._decided: FIFOCache[TaskKey, None] = FIFOCache(_MAX_DECIDED_IDS)

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
        for name in await self._bus.keys():
            document = await self._bus.get(name)
            if document is not None and document.get("status") in _OPEN:
                await self._load(TaskKey(name))
        async with aclosing(
            self._bus.follow([channel.all for channel in _CHANNELS], last_seq)
        ) as records:
            async for recorded in records:
                await self._handle(recorded.event)

    async def _handle(self, event: Event) -> None:
        task_id = event.data.get("task_id")
        if not isinstance(task_id, str) or task_id in self._decided:
            return
        try:
            task_key = check_task_key(task_id)
        except InvalidRequest:
            return
        if event.type is EventType.DELIBERATION_DECIDED:
            self._close(task_key)
        elif task_key in self._states or event.type is EventType.DELIBERATION_REQUESTED:
            self._fold(task_key, event)
        else:  # requested before this observer started
            await self._load(task_key)

    async def _load(self, task_key: TaskKey) -> None:
        while True:
            try:
                return await self._read(task_key)
            except Temporary as error:
                log.warning(
                    "could not load a deliberation yet",
                    task_id=task_key,
                    code=error.code,
                    reason=error.message,
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, task_key: TaskKey) -> None:
        async for recorded in self._bus.replay([channel.of(task_key) for channel in _CHANNELS]):
            if recorded.event.type is EventType.DELIBERATION_DECIDED:
                self._close(task_key)
                return
            self._fold(task_key, recorded.event)
        if task_key not in self._states or self._states[task_key].requested is None:
            self._close(task_key)  # it was never requested

    def _fold(self, task_key: TaskKey, event: Event) -> None:
        try:
            self._states[task_key] = fold(self._states.get(task_key), event)
        except InvalidRequest:
            return  # the collector reports it

    def _close(self, task_key: TaskKey) -> None:
        self._states.pop(task_key, None)
        self._decided[task_key] = None
