"""A host: pulls deliberations from the work queue and runs their seats as coroutines.

It does not depend on where it runs: in a process, a child process or a Ray actor.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import platform
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cachetools import LRUCache

from moothall import telemetry
from moothall.authorization.budgets import Quotas, Reservation, Reservations, StoryBudgets
from moothall.concurrency import Capacity, beside
from moothall.deliberation.context import Control, Dependencies
from moothall.deliberation.protocols import HOST_STOPS, deliberate
from moothall.deliberation.recorded_model import PauseGate, Recording, steering_text
from moothall.domain.budget import Budget
from moothall.domain.chat import Writing
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, Recorded, deliberation_topics
from moothall.domain.identity import Principal
from moothall.domain.ids import ROLES, TaskKey
from moothall.domain.status import FLEET, Held, HostState
from moothall.domain.task import Deliberation, Pauses, check_deliberation
from moothall.errors import (
    MoothallError,
    NotFound,
    Superseded,
    Temporary,
)
from moothall.orchestrator.fork import inherit_turns
from moothall.ports import Bus, Repositories
from moothall.stories.board import Board
from moothall.workers.preparing import first_of, give_up, prepare
from moothall.workspace.slots import queued_since

log = telemetry.get_logger(__name__)

_TAKEN_KEPT = 1000
_UNSEEN_SECONDS = 0.75
_OVER = {EventType.DELIBERATION_DECIDED, EventType.DELIBERATION_CANCELLED}


@dataclass(slots=True)
class _Running:
    """A deliberation in hand, and by which of its deliveries."""

    task: asyncio.Task[None]
    deliveries: int
    unseen_from: float = math.inf
    """When the log is first asked whether it is over, of one that nothing was asked of when it was
    taken up (monotonic seconds).
    """
    since: float = field(default_factory=time.time)
    lost: bool = False
    """Another has it, or shall have it: it is neither done nor over."""
    words: dict[str, str] = field(default_factory=dict)
    """What was said to it, by event id."""
    pauses: Pauses = field(default_factory=Pauses)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    down: bool = False
    """It was put down because it is paused."""

    def heed(self, pauses: Pauses) -> None:
        """Note whether it is paused."""
        self.pauses = self.pauses.with_all(pauses)
        on, off = (self.held, self.free) if self.pauses.is_paused else (self.free, self.held)
        on.set()
        off.clear()


@dataclass(slots=True)
class Host:
    """Everything one host process works with. `run` goes on until cancelled.

    A deliberation is done by one host at a time, as far as that can be had: a host that stood still
    for too long
    loses its work to another. It hears of that when it goes on, and stops without a word.
    """

    name: str
    bus: Bus
    repositories: Repositories
    parts: Dependencies
    concurrency: int
    """Deliberations at a time, of all roles together."""
    accounts: StoryBudgets | None = None
    """The budgets of stories; without them a deliberation has its own alone."""
    still_seconds: float = 10.0
    """After standing still for so long its work is another's: the bus's `ack_wait_seconds`."""
    quotas: Quotas | None = None
    """The quotas of tenants; None: no limits."""
    look_seconds: float = 5.0
    """How often the log is asked whether what is in hand is over: a signal may be lost. Of what was
    taken up unread, once within a
    second: it may have been cancelled while nobody had it.
    """
    node: str = ""
    """Where it runs, as its fleet knows that machine."""
    _running: dict[TaskKey, _Running] = field(default_factory=dict)
    _taken: dict[TaskKey, int] = field(default_factory=dict)
    """By which delivery others have taken up what was delivered before."""
    _begun: LRUCache[TaskKey, None] = field(default_factory=lambda: LRUCache(_TAKEN_KEPT))
    """What was in hand here: the bus may give it out as new once more, had it lost its ack."""
    _beat: float = field(default_factory=time.monotonic)
    _self: str = field(default_factory=lambda: secrets.token_hex(8))
    _began: float = field(default_factory=time.time)

    async def run(self) -> None:
        """Pull and work until cancelled."""
        self._show_oldest()
        capacity = Capacity(self.concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_for_cancels(), name="cancels")
            group.create_task(self._listen_for_words(), name="words")
            group.create_task(self._listen_for_takers(), name="takers")
            group.create_task(self._look_for_ends(), name="ends")
            group.create_task(self._keep_beating(), name="beat")
            group.create_task(self.bus.answer(FLEET, self._report_progress), name="state")
            for role in ROLES:
                group.create_task(
                    self.bus.consume(f"host-{role}", self._work, concurrency=capacity),
                    name=f"pull-{role}",
                )

    async def _report_progress(
        self, _request: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], bytes]:
        """Return the state of this host."""
        held = tuple(Held(task_key, running.since) for task_key, running in self._running.items())
        return dump(
            HostState(self.name, self.node or platform.node(), os.getpid(), self._began, held)
        ), b""

    def _show_oldest(self) -> None:
        telemetry.metrics.HOST_OLDEST.set(
            min((one.since for one in self._running.values()), default=0.0), self.name
        )

    @property
    def busy(self) -> int:
        """Deliberations in hand."""
        return len(self._running)

    async def _listen_for_cancels(self) -> None:
        async for data in self.bus.signals(Channel.CANCEL.all):
            self._stop(TaskKey(str(data.get("task_id", ""))))

    async def _listen_for_words(self) -> None:
        async for data in self.bus.signals(Channel.STEER.all):
            task_key = TaskKey(str(data.get("task_id", "")))
            if (running := self._running.get(task_key)) is not None:
                with suppress(Temporary):  # the next look hears it
                    await self._hear(task_key, running)

    async def _listen_for_takers(self) -> None:
        async for data in self.bus.signals(Channel.TAKEN.all):
            task_key, deliveries = TaskKey(str(data.get("task_id", ""))), data.get("deliveries")
            running = self._running.get(task_key)
            if data.get("host") == self._self or not isinstance(deliveries, int):
                continue
            self._taken[task_key] = max(deliveries, self._taken.pop(task_key, 0))
            while len(self._taken) > _TAKEN_KEPT:
                del self._taken[next(iter(self._taken))]
            if running is not None and deliveries > running.deliveries:
                log.warning(
                    "another host has taken this up; leaving it to that one", task_id=task_key
                )
                running.lost = True
                self._stop(task_key, HOST_STOPS)

    async def _keep_beating(self) -> None:
        while True:
            self._awake()
            await asyncio.sleep(min(1.0, self.still_seconds / 4))

    def _awake(self) -> None:
        """Let go of everything in hand if this process stood still for too long, whoever is the
        first to notice.
        """
        now = time.monotonic()
        stood, self._beat = now - self._beat, now
        if stood <= self.still_seconds:
            return
        for task_key, running in self._running.items():
            log.warning(
                "stood still for too long; leaving this to whoever has it now",
                task_id=task_key,
                seconds=round(stood),
            )
            running.lost = True
            self._stop(task_key, HOST_STOPS)

    def _ours(self, task_key: TaskKey) -> bool:
        self._awake()
        running = self._running.get(task_key)
        return running is not None and not running.lost

    async def _look_for_ends(self) -> None:
        """Stop what is over though no signal said so: it was lost, or the end came from elsewhere.
        Words that a signal lost are heard too.
        """
        looked = time.monotonic()
        while True:
            await asyncio.sleep(min(self.look_seconds, _UNSEEN_SECONDS / 3))
            now = time.monotonic()
            if everything := now - looked >= self.look_seconds:
                looked = now
            for task_key, running in list(self._running.items()):
                if not everything and running.unseen_from > now:
                    continue
                running.unseen_from = math.inf
                try:
                    over = await self._hear(task_key, running)
                except Temporary as error:
                    log.info(
                        "could not look whether it is over", task_id=task_key, reason=error.message
                    )
                    break
                if over is not None:
                    self._stop(
                        task_key, None if over is EventType.DELIBERATION_CANCELLED else HOST_STOPS
                    )

    async def _hear(self, task_key: TaskKey, running: _Running) -> EventType | None:
        """Give it what was said to it, and that it is paused or goes on; return how it is over, if
        it is.
        """
        # One after the other: read together, the bus would send everything about the task.
        events = [
            item.event
            for channel in (Channel.RESPONSES, Channel.WORDS)
            async for item in self.bus.replay((channel.of(task_key),))
        ]
        for event in events:
            if event.type in _OVER:
                return event.type
            if event.type is EventType.DELIBERATION_STEERED:
                running.words[event.id] = steering_text(event)
        running.heed(Pauses.of(events))
        return None

    def _stop(self, task_key: TaskKey, message: str | None = None) -> None:
        running = self._running.get(task_key)
        if running is not None:
            running.task.cancel(message)

    async def _work(self, recorded: Recorded) -> None:
        """Run one deliberation to its end, in a task of its own so that a cancel stops it and not
        the pulling.
        """
        deliberation = check_deliberation(load(Deliberation, recorded.event.data))
        task_key = deliberation.task_id
        deliveries = int(recorded.extra.get("deliveries", "1"))
        while (known := self._running.get(task_key)) is not None:
            # Delivered again while it runs here: this delivery ends as that one does, or an ack
            # would lose the work.
            known.deliveries = max(known.deliveries, deliveries)
            await asyncio.wait({known.task})
            if not known.lost:
                _end_of(known.task)
                return
            await asyncio.sleep(0)  # until whoever ran it has let go
        self._yield_to_later(
            task_key, deliveries
        )  # it came while this host stood still, and again to another
        # Known before anything is awaited, so that no cancel is missed.
        fresh = deliveries == 1 and "fresh" in recorded.extra and task_key not in self._begun
        self._begun[task_key] = None
        task = asyncio.create_task(
            self._take_up(deliberation, deliveries, recorded.event, fresh=fresh),
            name=f"deliberation-{task_key}",
        )
        unseen_from = time.monotonic() + _UNSEEN_SECONDS if fresh else math.inf
        running = self._running[task_key] = _Running(task, deliveries, unseen_from)
        self._show_oldest()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # This host ends or lost its work, the deliberation does not end: it is taken up from
            # what is recorded.
            running.lost = True
            task.cancel(HOST_STOPS)
            await asyncio.wait({task})
            raise
        finally:
            del self._running[task_key]
            self._show_oldest()
        if running.lost:
            raise Superseded(f"{task_key} was taken up by another host")
        _end_of(task)

    def _yield_to_later(self, task_key: TaskKey, deliveries: int) -> None:
        if deliveries < self._taken.get(task_key, 0):
            raise Superseded(f"{task_key} was taken up by another host")

    async def _remember(self, task_key: TaskKey) -> list[Event]:
        """Return what was recorded of this deliberation before."""
        return [item.event async for item in self.bus.replay(deliberation_topics(task_key))]

    async def _take_up(
        self, deliberation: Deliberation, deliveries: int, request: Event, *, fresh: bool
    ) -> None:
        about = _about(deliberation) | {"moothall.deliveries": deliveries}
        with (
            # Delivered again or elsewhere, it goes on in the trace of its request.
            telemetry.span("deliberation", about, kind="consumer", parent=request.traceparent),
            queued_since(_time_of(request)),
            telemetry.bound(task_id=deliberation.task_id, tenant=deliberation.tenant),
            telemetry.metrics.DELIBERATIONS_IN_FLIGHT.track_inprogress(),
        ):
            await self._go_on(deliberation, deliveries, _time_of(request), fresh=fresh)

    async def _go_on(
        self, deliberation: Deliberation, deliveries: int, submitted: float, *, fresh: bool
    ) -> None:
        if deliveries > 1:
            taken = {"task_id": deliberation.task_id, "host": self._self, "deliveries": deliveries}
            await self.bus.signal(Channel.TAKEN.of(deliberation.task_id), taken)
            # What came here before the answer to that includes the word of whoever took it up
            # later.
            self._yield_to_later(deliberation.task_id, deliveries)
        events = [] if fresh else await self._remember(deliberation.task_id)
        running = self._running[deliberation.task_id]
        while True:
            running.heed(Pauses.of(events))
            over = any(event.type in _OVER for event in events)
            try:
                recording = Recording.of(
                    events if over else await inherit_turns(self.bus, deliberation, events)
                )
            except NotFound as error:  # what it was forked from
                await give_up(self.bus, deliberation, error)
                return
            reservation = await self._reserve(deliberation, submitted)
            if over:
                if reservation is not None:  # whoever had it may have been killed over the end
                    await reservation.close(recording.spent)
                return
            if not running.pauses.is_paused and await self._until_paused(
                deliberation, recording, reservation, running
            ):
                return
            if (
                reservation is not None
                # what it does not spend meanwhile is the story's, and stays so where it is
                # cancelled
            ):
                await reservation.close(
                    Recording.of(await self._remember(deliberation.task_id)).spent
                )
            await running.free.wait()
            events = await self._remember(deliberation.task_id)

    async def _until_paused(
        self,
        d: Deliberation,
        recording: Recording,
        reservation: Reservation | None,
        running: _Running,
    ) -> bool:
        """Deliberate; whether that was all. Paused, it is put down, and taken up later from what is
        recorded, with the time that it had left.
        """
        pause_gate, task = PauseGate(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one

        async def put_down() -> None:
            await running.held.wait()
            await pause_gate.close_and_drain()
            running.down = True
            task.cancel(HOST_STOPS)

        running.down = False
        later = replace(d, deadline=running.pauses.extend(d.deadline))
        try:
            async with beside(put_down(), "pause"):
                await self._deliberate(later, recording, reservation, pause_gate)
        except asyncio.CancelledError:
            if not running.down or task.uncancel():
                raise
            return False
        return True

    async def _reserve(self, deliberation: Deliberation, submitted: float) -> Reservation | None:
        """Return the reservation of a deliberation in the budget of its story, and in the quotas of
        its tenant for the day on which it was `submitted` (Unix seconds). None if no model is
        called.
        """
        if deliberation.asks_no_model:
            return None
        parts: list[Reservation] = []
        if self.accounts is not None and deliberation.story_id:
            card = await Board(self.bus).find(
                deliberation.story_id, Principal(deliberation.principal, deliberation.tenant)
            )
            budget = card.story.budget if card else Budget()
            parts.append(
                self.accounts.reservation(
                    deliberation.story_id, deliberation.tenant, deliberation.task_id, budget
                )
            )
        if self.quotas is not None:
            quota = await self.quotas.reservation(
                deliberation.tenant, deliberation.task_id, datetime.fromtimestamp(submitted, UTC)
            )
            parts += [quota] if quota else []
        return Reservations(parts) if parts else None

    async def _deliberate(
        self,
        deliberation: Deliberation,
        recording: Recording,
        reservation: Reservation | None,
        pause_gate: PauseGate,
    ) -> None:
        prepared, refusal = None, None
        try:
            with telemetry.span("prepare"):
                prepared = await prepare(
                    self.bus, self.repositories, deliberation, self.parts.rules.evidence.held_out
                )
        except* (MoothallError, OSError) as group:
            refusal = first_of(group)
        if isinstance(refusal, Temporary):
            raise refusal
        if refusal is not None:
            await give_up(self.bus, deliberation, refusal)
        else:
            owns_work = functools.partial(self._ours, deliberation.task_id)
            steering = self._running[deliberation.task_id].words

            async def publish_partial(writing: Writing) -> None:
                data = {"task_id": deliberation.task_id, **asdict(writing)}
                await self.bus.signal(Channel.GROWING.of(deliberation.task_id), data)

            control = Control(owns_work, reservation, steering, publish_partial, pause_gate)
            parts = replace(self.parts, control=control)
            await deliberate(deliberation, prepared, parts, recording)


def _end_of(task: asyncio.Task[None]) -> None:
    """Raise what a task raised; that it was cancelled is an end like another."""
    if not task.cancelled():
        task.result()


def _time_of(event: Event) -> float:
    """Return when an event was made, in Unix seconds; now if it does not say."""
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:
        return time.time()


def _about(deliberation: Deliberation) -> dict[str, str | int]:
    """What its span says of a deliberation."""
    return {
        "moothall.task_id": deliberation.task_id,
        "moothall.tenant": deliberation.tenant,
        "moothall.role": deliberation.role,
        "moothall.protocol": deliberation.protocol,
        "moothall.seats": len(deliberation.seats),
    }
