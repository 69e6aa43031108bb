"""One deliberation's log and status document, read and written; and active deliberations,
followed by a process that makes no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from cachetools import FIFOCache

from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import TaskKey, check_task_key
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation
from moothall.errors import AlreadyExists, InvalidRequest, Temporary
from moothall.ports import Bus
from moothall.telemetry import get_logger

# Reading and writing of one deliberation's log and status document. Concurrent writers publish each
# only once.


log = get_logger(__name__)

DOCUMENTS = "deliberations"


def with_log_time(recorded: Recorded) -> Event:
    """Return the event, with the log's time if it has none."""
    event = recorded.event
    return (
        event
        if event.time or "time" not in recorded.extra
        else replace(event, time=recorded.extra["time"])
    )


def fold_or_skip(state: DeliberationState | None, recorded: Recorded) -> DeliberationState | None:
    """Fold an event of the log; skip a malformed one, whose own delivery moves it to the dead
    letters.
    """
    try:
        return fold(state, with_log_time(recorded))
    except InvalidRequest as error:
        log.warning("skipped a malformed event", seq=recorded.seq, reason=error.message)
        return state


def read_log(bus: Bus, task_key: TaskKey) -> AsyncGenerator[Recorded, None]:
    """Yield the events of one deliberation from the log."""
    return bus.replay(
        (Channel.RESULTS.of(task_key), Channel.RESPONSES.of(task_key), Channel.WORDS.of(task_key))
    )


async def replay_state(
    bus: Bus, task_key: TaskKey, *, until_settled: bool = False
) -> DeliberationState | None:
    """Return the state of one deliberation from the log, or None.

    until_settled: stop at the first event that requires a decision.
    """
    state: DeliberationState | None = None
    async for recorded in read_log(bus, task_key):
        settled = state is not None and state.settled
        if until_settled and settled and recorded.event.type is not EventType.DELIBERATION_DECIDED:
            continue
        state = fold_or_skip(state, recorded)
    return state


async def publish_status(bus: Bus, document: Outcome) -> None:
    """Publish the status document of an undecided deliberation, unless a later status exists."""
    bucket = bus.bucket(DOCUMENTS)
    while True:
        current, revision = await bucket.get_with_revision(document.task_id)
        if current is not None and current.get("status") not in {DeliberationStatus.PENDING} - {
            document.status
        }:
            return
        try:
            await bucket.replace(document.task_id, dump(document), revision)
        except AlreadyExists:
            continue  # another process was faster, or this is a repeat of our own write
        return


async def record_decision(bus: Bus, decision: Event, task_key: TaskKey) -> Outcome | None:
    """Record a decision. If there is one already, by any process, return it instead."""
    last_seen = -1
    seq = 0
    while seq != last_seen:  # if equal, a decision was recorded once but is gone now
        last_seen = seq
        try:
            await bus.create(decision, last_seen)
        except AlreadyExists:
            # A cancellation may precede the decision.
            async for recorded in bus.replay((Channel.RESPONSES.of(task_key),)):
                seq = recorded.message or recorded.seq
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        else:
            break
    return None


# Active deliberations, followed from the log by a process that makes no decisions.


_CHANNELS = (Channel.RESULTS, Channel.RESPONSES, Channel.WORDS)
_OPEN_STATUSES = {DeliberationStatus.PENDING, DeliberationStatus.IN_PROGRESS}
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
            if document is not None and document.get("status") in _OPEN_STATUSES:
                await self._load_task(TaskKey(name))
        async with aclosing(
            self._bus.follow([channel.all for channel in _CHANNELS], last_seq)
        ) as records:
            async for recorded in records:
                await self._handle_event(recorded.event)

    async def _handle_event(self, event: Event) -> None:
        task_id = event.data.get("task_id")
        if not isinstance(task_id, str) or task_id in self._decided:
            return
        try:
            task_key = check_task_key(task_id)
        except InvalidRequest:
            return
        if event.type is EventType.DELIBERATION_DECIDED:
            self._close_task(task_key)
        elif task_key in self._states or event.type is EventType.DELIBERATION_REQUESTED:
            self._fold_event(task_key, event)
        else:  # requested before this observer started
            await self._load_task(task_key)

    async def _load_task(self, task_key: TaskKey) -> None:
        while True:
            try:
                return await self._read_task(task_key)
            except Temporary as error:
                log.warning(
                    "could not load a deliberation yet",
                    task_id=task_key,
                    code=error.code,
                    reason=error.message,
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def _read_task(self, task_key: TaskKey) -> None:
        async for recorded in self._bus.replay([channel.of(task_key) for channel in _CHANNELS]):
            if recorded.event.type is EventType.DELIBERATION_DECIDED:
                self._close_task(task_key)
                return
            self._fold_event(task_key, recorded.event)
        if task_key not in self._states or self._states[task_key].requested is None:
            self._close_task(task_key)  # it was never requested

    def _fold_event(self, task_key: TaskKey, event: Event) -> None:
        try:
            self._states[task_key] = fold(self._states.get(task_key), event)
        except InvalidRequest:
            return  # the collector reports it

    def _close_task(self, task_key: TaskKey) -> None:
        self._states.pop(task_key, None)
        self._decided[task_key] = None
