"""A host: pulls deliberations from the work queue and runs their seats as coroutines.

Knows nothing of Ray, so that it runs the same in a Ray actor, in a test or alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from moothall.council.desk import subjects_of
from moothall.council.protocols import HOST_STOPS, Parts, deliberate
from moothall.council.recording import Recording
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType, Recorded, new_event
from moothall.domain.ids import ROLES
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import MoothallError, RepositoryError, Temporary
from moothall.ports import Consumer, Log, Publisher, Repositories, Signals
from moothall.telemetry import get_logger

log = get_logger(__name__)


class HostBus(Publisher, Log, Consumer, Signals, Protocol):
    """What a host needs of the bus."""


@dataclass(slots=True)
class Host:
    """Everything one host process works with. `run` goes on until cancelled."""

    name: str
    bus: HostBus
    repositories: Repositories
    parts: Parts
    concurrency: int
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Pull and work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_for_cancels(), name="cancels")
            for role in ROLES:
                group.create_task(self.bus.consume(f"host-{role}", self._work, concurrency=self.concurrency), name=f"pull-{role}")

    @property
    def busy(self) -> int:
        """Deliberations in hand."""
        return len(self._running)

    async def _listen_for_cancels(self) -> None:
        async for _, data in self.bus.signals("agent.cancel.*"):
            task = self._running.get(str(data.get("task_id", "")))
            if task is not None:
                task.cancel()

    async def _work(self, recorded: Recorded) -> None:
        """Run one deliberation to its end, in a task of its own so that a cancel stops it and not the pulling."""
        deliberation = load(Deliberation, recorded.event.data)
        task_id = deliberation.task_id
        running = self._running.get(task_id)
        if running is not None:
            # Delivered again while it runs here: this delivery ends as that one does, or an ack would lose the work.
            await asyncio.wait({running})
            if not running.cancelled():
                running.result()
            return
        # Known before anything is awaited, so that no cancel is missed.
        task = asyncio.create_task(self._take_up(deliberation), name=f"deliberation-{task_id}")
        self._running[task_id] = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # This host ends, the deliberation does not: another takes it up from what is recorded.
            task.cancel(HOST_STOPS)
            await asyncio.wait({task})
            raise
        finally:
            del self._running[task_id]
        if not task.cancelled():
            task.result()

    async def _remember(self, task_id: str) -> tuple[Recording, bool]:
        """Return what was recorded of this deliberation before, and whether it is over."""
        events = [item.event async for item in self.bus.replay(subjects_of(task_id))]
        over = any(event.type in {EventType.DELIBERATION_DECIDED, EventType.DELIBERATION_CANCELLED} for event in events)
        return Recording.of(events), over

    async def _take_up(self, deliberation: Deliberation) -> None:
        recording, over = await self._remember(deliberation.task_id)
        if not over:
            await self._deliberate(deliberation, recording)

    async def _deliberate(self, deliberation: Deliberation, recording: Recording) -> None:
        prepared, refusal = None, None
        try:
            prepared = await self._prepare(deliberation)
        except* (MoothallError, OSError) as group:
            refusal = _first(group)
        if isinstance(refusal, Temporary):
            raise refusal
        if refusal is not None:
            await self._give_up(deliberation, refusal)
        else:
            await deliberate(deliberation, prepared, self.parts, recording)

    async def _prepare(self, deliberation: Deliberation) -> Prepared | None:
        if deliberation.repository is None or deliberation.base_sha is None:
            return None
        ref = RepositoryRef(id=deliberation.repository.id, ref=deliberation.base_sha)
        base = await self.repositories.resolve(ref, tenant=deliberation.tenant)
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_progress(deliberation, steps))

            def tell(step: str) -> None:
                loop.call_soon_threadsafe(steps.put_nowait, step)

            try:
                return await self.repositories.prepare(base, tell)
            finally:
                steps.put_nowait(None)

    async def _tell_progress(self, deliberation: Deliberation, steps: asyncio.Queue[str | None]) -> None:
        number = 0
        while (step := await steps.get()) is not None:
            number += 1
            data = {
                "agent_id": deliberation.task_id,
                "task_id": deliberation.task_id,
                "workstream": "preparation",
                "progress": 0.0,
                "current_task": step,
                "metrics": {},
            }
            await self.bus.publish(_event(EventType.AGENT_PROGRESS, deliberation, data, f"prepare-{number}-{step}"))

    async def _give_up(self, deliberation: Deliberation, error: MoothallError) -> None:
        """A repository that cannot be prepared fails every seat before it started."""
        log.warning("preparation failed", task_id=deliberation.task_id, code=error.code, reason=error.message)
        for seat in deliberation.seats:
            outcome = SeatOutcome(seat=seat, status=SeatStatus.FAILED, error_code=error.code, error_message=error.message)
            data = {"task_id": deliberation.task_id, "seat": seat, "outcome": dump(outcome)}
            await self.bus.publish(_event(EventType.SEAT_FINISHED, deliberation, data, seat))


def _first(group: BaseExceptionGroup[MoothallError | OSError]) -> MoothallError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MoothallError):
        return error
    return RepositoryError(f"the repository cannot be prepared: {error}; is the disk full? Free some, or set MOOTHALL_DATA_DIR")


def _event(kind: EventType, deliberation: Deliberation, data: Mapping[str, object], ordinal: str) -> Event:
    return new_event(
        kind,
        deliberation.task_id,
        data,
        ordinal=ordinal,
        source="host",
        correlationid=deliberation.story_id or deliberation.task_id,
        tenant=deliberation.tenant,
    )
