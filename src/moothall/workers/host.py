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
from moothall.concurrency import Capacity, run_in_background
from moothall.deliberation.context import Control, Dependencies
from moothall.deliberation.protocols import HOST_STOPS, deliberate
from moothall.deliberation.recorded_model import PauseGate, Recording, steering_text
from moothall.domain.budget import Budget
from moothall.domain.chat import Writing
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, Recorded, deliberation_topics
from moothall.domain.ids import ROLES, Principal, TaskKey
from moothall.domain.status import FLEET, HostState, RunningDeliberation
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
from moothall.workers.preparing import fail_all_seats, first_error, prepare, publish_step
from moothall.workspace.slots import QueuePlace, queued

log = telemetry.get_logger(__name__)

_MAX_REMEMBERED = 1000
_FIRST_POLL_SECONDS = 0.75
_TENANT_SECONDS = 600.0
"""Each older deliberation of its tenant delays the commands of a deliberation by so much."""
_WAIT_POLL_SECONDS, _LONG_WAIT_SECONDS = 5.0, 10.0
_WAITING_MESSAGE = "waits for a free core; older work goes first"
_END_EVENTS = {EventType.DELIBERATION_DECIDED, EventType.DELIBERATION_CANCELLED}


@dataclass(slots=True)
class _Running:
    """A running deliberation. `deliveries`: the highest delivery count of its work item."""

    task: asyncio.Task[None]
    deliberation: Deliberation
    place: QueuePlace
    """Its place in the queue for the cores of this machine."""
    deliveries: int
    first_poll_at: float = math.inf
    """When the log is polled for the first time, if it was not read at the start (monotonic
    seconds).
    """
    started_at: float = field(default_factory=time.time)
    lost: bool = False
    """Another host runs it or will run it; it has not ended."""
    steering: dict[str, str] = field(default_factory=dict)
    """Steering messages by event id."""
    pauses: Pauses = field(default_factory=Pauses)
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    suspended: bool = False
    """Its run was stopped because of a pause."""

    def apply_pauses(self, pauses: Pauses) -> None:
        """Add requests to pause or resume, and set the events accordingly."""
        self.pauses = self.pauses.with_all(pauses)
        on, off = (
            (self.paused, self.resumed) if self.pauses.is_paused else (self.resumed, self.paused)
        )
        on.set()
        off.clear()


@dataclass(slots=True)
class Host:
    """One host process. `run` works until cancelled.

    One host at a time runs a deliberation, with one exception: a host that was suspended for too
    long loses its work to another host. When it continues, it learns of that, and stops the work
    without publishing anything.
    """

    name: str
    bus: Bus
    repositories: Repositories
    parts: Dependencies
    concurrency: int
    """The maximum number of running deliberations of all roles."""
    story_budgets: StoryBudgets | None = None
    """The budgets of stories; None: deliberations have only their own budgets."""
    suspension_seconds: float = 10.0
    """After a suspension this long, other hosts have the work: `ack_wait_seconds` of the bus."""
    quotas: Quotas | None = None
    """The quotas of tenants; None: no limits."""
    poll_seconds: float = 5.0
    """How often the log is polled for the end of running deliberations, because signals may be
    lost. Deliberations whose log was not read at the start are also polled once within a second:
    they may have been cancelled while they were queued.
    """
    node: str = ""
    """The name of this machine in the fleet."""
    _running: dict[TaskKey, _Running] = field(default_factory=dict)
    _takeovers: dict[TaskKey, int] = field(default_factory=dict)
    """The delivery counts with which other hosts have taken over deliberations."""
    _started_tasks: LRUCache[TaskKey, None] = field(
        default_factory=lambda: LRUCache(_MAX_REMEMBERED)
    )
    """Deliberations that ran here. The bus may deliver one as new again if it lost its ack."""
    _beat: float = field(default_factory=time.monotonic)
    _host_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _started_at: float = field(default_factory=time.time)

    async def run(self) -> None:
        """Pull and work until cancelled."""
        self._show_oldest()
        capacity = Capacity(self.concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_for_cancels(), name="cancels")
            group.create_task(self._listen_for_steering(), name="steering")
            group.create_task(self._listen_for_takeovers(), name="takeovers")
            group.create_task(self._poll_for_ends(), name="ends")
            group.create_task(self._poll_for_waits(), name="waits")
            group.create_task(self._watch_for_suspension(), name="beat")
            group.create_task(self.bus.answer(FLEET, self._report_progress), name="state")
            for role in ROLES:
                group.create_task(
                    self.bus.consume(f"host-{role}", self._handle_work, concurrency=capacity),
                    name=f"pull-{role}",
                )

    async def _report_progress(
        self, _request: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], bytes]:
        """Return the state of this host."""
        running_deliberations = tuple(
            RunningDeliberation(task_key, running.started_at)
            for task_key, running in self._running.items()
        )
        return dump(
            HostState(
                self.name,
                self.node or platform.node(),
                os.getpid(),
                self._started_at,
                running_deliberations,
            )
        ), b""

    def _show_oldest(self) -> None:
        telemetry.metrics.HOST_OLDEST.set(
            min((running.started_at for running in self._running.values()), default=0.0), self.name
        )

    @property
    def busy(self) -> int:
        """The number of running deliberations."""
        return len(self._running)

    async def _listen_for_cancels(self) -> None:
        async for data in self.bus.signals(Channel.CANCEL.all):
            self._stop_deliberation(TaskKey(str(data.get("task_id", ""))))

    async def _listen_for_steering(self) -> None:
        async for data in self.bus.signals(Channel.STEER.all):
            task_key = TaskKey(str(data.get("task_id", "")))
            if (running := self._running.get(task_key)) is not None:
                with suppress(Temporary):  # the next poll reads it
                    await self._read_messages(task_key, running)

    async def _listen_for_takeovers(self) -> None:
        async for data in self.bus.signals(Channel.TAKEN.all):
            task_key, deliveries = TaskKey(str(data.get("task_id", ""))), data.get("deliveries")
            running = self._running.get(task_key)
            if data.get("host") == self._host_id or not isinstance(deliveries, int):
                continue
            self._takeovers[task_key] = max(deliveries, self._takeovers.pop(task_key, 0))
            while len(self._takeovers) > _MAX_REMEMBERED:
                del self._takeovers[next(iter(self._takeovers))]
            if running is not None and deliveries > running.deliveries:
                log.warning(
                    "another host has taken over this task; stopping it here", task_id=task_key
                )
                running.lost = True
                self._stop_deliberation(task_key, HOST_STOPS)

    async def _watch_for_suspension(self) -> None:
        while True:
            self._check_suspension()
            await asyncio.sleep(min(1.0, self.suspension_seconds / 4))

    def _check_suspension(self) -> None:
        """Give up all work if this process was suspended for too long."""
        now = time.monotonic()
        suspended, self._beat = now - self._beat, now
        if suspended <= self.suspension_seconds:
            return
        for task_key, running in self._running.items():
            log.warning(
                "suspended for too long; leaving this task to another host",
                task_id=task_key,
                seconds=round(suspended),
            )
            running.lost = True
            self._stop_deliberation(task_key, HOST_STOPS)

    def _owns_task(self, task_key: TaskKey) -> bool:
        self._check_suspension()
        running = self._running.get(task_key)
        return running is not None and not running.lost

    async def _poll_for_ends(self) -> None:
        """Stop ended deliberations and read steering messages whose signals were lost."""
        polled_at = time.monotonic()
        while True:
            await asyncio.sleep(min(self.poll_seconds, _FIRST_POLL_SECONDS / 3))
            now = time.monotonic()
            if polls_all := now - polled_at >= self.poll_seconds:
                polled_at = now
            for task_key, running in list(self._running.items()):
                if not polls_all and running.first_poll_at > now:
                    continue
                running.first_poll_at = math.inf
                try:
                    end_type = await self._read_messages(task_key, running)
                except Temporary as error:
                    log.info(
                        "cannot read whether a task has ended",
                        task_id=task_key,
                        reason=error.message,
                    )
                    break
                if end_type is not None:
                    self._stop_deliberation(
                        task_key,
                        None if end_type is EventType.DELIBERATION_CANCELLED else HOST_STOPS,
                    )

    async def _read_messages(self, task_key: TaskKey, running: _Running) -> EventType | None:
        """Pass steering messages and pauses on to a deliberation. Return the event that ended it,
        if any.
        """
        # One after the other: read together, the bus would send everything about the task.
        events = [
            item.event
            for channel in (Channel.RESPONSES, Channel.WORDS)
            async for item in self.bus.replay((channel.of(task_key),))
        ]
        for event in events:
            if event.type in _END_EVENTS:
                return event.type
            if event.type is EventType.DELIBERATION_STEERED:
                running.steering[event.id] = steering_text(event)
        running.apply_pauses(Pauses.of(events))
        return None

    async def _poll_for_waits(
        self, poll_seconds: float = _WAIT_POLL_SECONDS, min_wait_seconds: float = _LONG_WAIT_SECONDS
    ) -> None:
        """Publish each wait for a core that is longer than `min_wait_seconds`, once."""
        reported: set[TaskKey] = set()
        while True:
            await asyncio.sleep(poll_seconds)
            waiting = {
                task_key: running.deliberation
                for task_key, running in self._running.items()
                if running.place.waited_seconds > min_wait_seconds
            }
            for task_key in waiting.keys() - reported:
                with suppress(Temporary):  # it is only shown
                    await publish_step(
                        self.bus,
                        waiting[task_key],
                        "waiting",
                        _WAITING_MESSAGE,
                        ordinal=f"wait-{secrets.token_hex(8)}",
                    )
            reported = set(waiting)

    def _delay_commands(self, tenant: str, submitted_at: float) -> float:
        """Return by how many seconds the commands of a deliberation of a tenant, submitted at
        `submitted_at`, yield to those of others, so that tenants share the cores.
        """
        older = sum(
            running.deliberation.tenant == tenant and running.place.since < submitted_at
            for running in self._running.values()
        )
        return _TENANT_SECONDS * older

    def _stop_deliberation(self, task_key: TaskKey, message: str | None = None) -> None:
        running = self._running.get(task_key)
        if running is not None:
            running.task.cancel(message)

    async def _handle_work(self, recorded: Recorded) -> None:
        """Run one deliberation to its end, in its own task, so that a cancel does not stop the
        consumer.
        """
        deliberation = check_deliberation(load(Deliberation, recorded.event.data))
        task_key = deliberation.task_id
        deliveries = int(recorded.extra.get("deliveries", "1"))
        while (active := self._running.get(task_key)) is not None:
            # Delivered again while it runs here. This delivery must end like the first one,
            # because an early ack would lose the work.
            active.deliveries = max(active.deliveries, deliveries)
            await asyncio.wait({active.task})
            if not active.lost:
                _raise_exception_of(active.task)
                return
            await asyncio.sleep(0)  # until the first delivery has released it
        # It may have arrived during a suspension, and then again at another host.
        self._refuse_if_taken_over(task_key, deliveries)
        # Registered before anything is awaited, so that no cancel is missed.
        fresh = (
            deliveries == 1 and "fresh" in recorded.extra and task_key not in self._started_tasks
        )
        self._started_tasks[task_key] = None
        submitted_at = _time_of(recorded.event)
        delay = functools.partial(self._delay_commands, deliberation.tenant, submitted_at)
        place = QueuePlace(submitted_at, delay)
        task = asyncio.create_task(
            self._run_traced(deliberation, deliveries, recorded.event, fresh=fresh),
            name=f"deliberation-{task_key}",
        )
        first_poll_at = time.monotonic() + _FIRST_POLL_SECONDS if fresh else math.inf
        running = self._running[task_key] = _Running(
            task, deliberation, place, deliveries, first_poll_at
        )
        self._show_oldest()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # The deliberation does not end: another host resumes it from its recorded events.
            running.lost = True
            task.cancel(HOST_STOPS)
            await asyncio.wait({task})
            raise
        finally:
            del self._running[task_key]
            self._show_oldest()
        if running.lost:
            raise Superseded(f"another host has taken over {task_key}")
        _raise_exception_of(task)

    def _refuse_if_taken_over(self, task_key: TaskKey, deliveries: int) -> None:
        if deliveries < self._takeovers.get(task_key, 0):
            raise Superseded(f"another host has taken over {task_key}")

    async def _read_events(self, task_key: TaskKey) -> list[Event]:
        """Return the recorded events of a deliberation."""
        return [item.event async for item in self.bus.replay(deliberation_topics(task_key))]

    async def _run_traced(
        self, deliberation: Deliberation, deliveries: int, request: Event, *, fresh: bool
    ) -> None:
        attributes = _span_attributes(deliberation) | {"moothall.deliveries": deliveries}
        with (
            # All deliveries belong to the trace of the request.
            telemetry.span("deliberation", attributes, kind="consumer", parent=request.traceparent),
            queued(self._running[deliberation.task_id].place),
            telemetry.bound(task_id=deliberation.task_id, tenant=deliberation.tenant),
            telemetry.metrics.DELIBERATIONS_IN_FLIGHT.track_inprogress(),
        ):
            await self._run_deliberation(deliberation, deliveries, _time_of(request), fresh=fresh)

    async def _run_deliberation(
        self, deliberation: Deliberation, deliveries: int, submitted: float, *, fresh: bool
    ) -> None:
        if deliveries > 1:
            takeover = {
                "task_id": deliberation.task_id,
                "host": self._host_id,
                "deliveries": deliveries,
            }
            await self.bus.signal(Channel.TAKEN.of(deliberation.task_id), takeover)
            # Signals of hosts with later deliveries arrived before this signal was confirmed.
            self._refuse_if_taken_over(deliberation.task_id, deliveries)
        events = [] if fresh else await self._read_events(deliberation.task_id)
        running = self._running[deliberation.task_id]
        while True:
            running.apply_pauses(Pauses.of(events))
            is_ended = any(event.type in _END_EVENTS for event in events)
            try:
                recording = Recording.of(
                    events if is_ended else await inherit_turns(self.bus, deliberation, events)
                )
            except NotFound as error:  # what it was forked from
                await fail_all_seats(self.bus, deliberation, error)
                return
            reservation = await self._reserve_budget(deliberation, submitted)
            if is_ended:
                if reservation is not None:  # the last host may have been killed before this
                    await reservation.close(recording.spent)
                return
            if not running.pauses.is_paused and await self._run_until_paused(
                deliberation, recording, reservation, running
            ):
                return
            if reservation is not None:  # the story gets back what was not spent before the pause
                await reservation.close(
                    Recording.of(await self._read_events(deliberation.task_id)).spent
                )
            await running.resumed.wait()
            events = await self._read_events(deliberation.task_id)

    async def _run_until_paused(
        self,
        d: Deliberation,
        recording: Recording,
        reservation: Reservation | None,
        running: _Running,
    ) -> bool:
        """Deliberate, and return True at the end. Return False after a pause: the deliberation
        later resumes from its recorded events, with the time that was left.
        """
        pause_gate, task = PauseGate(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one

        async def suspend() -> None:
            await running.paused.wait()
            await pause_gate.close_and_drain()
            running.suspended = True
            task.cancel(HOST_STOPS)

        running.suspended = False
        extended = replace(d, deadline=running.pauses.extend(d.deadline))
        try:
            async with run_in_background(suspend(), "pause"):
                await self._run_recorded(extended, recording, reservation, pause_gate)
        except asyncio.CancelledError:
            if not running.suspended or task.uncancel():
                raise
            return False
        return True

    async def _reserve_budget(
        self, deliberation: Deliberation, submitted: float
    ) -> Reservation | None:
        """Return the reservation of a deliberation in the budget of its story, and in the quotas of
        its tenant for the day on which it was `submitted` (Unix seconds). None if no model is
        called.
        """
        if deliberation.asks_no_model:
            return None
        parts: list[Reservation] = []
        if self.story_budgets is not None and deliberation.story_id:
            card = await Board(self.bus).find(
                deliberation.story_id, Principal(deliberation.principal, deliberation.tenant)
            )
            budget = card.story.budget if card else Budget()
            parts.append(
                self.story_budgets.reservation(
                    deliberation.story_id, deliberation.tenant, deliberation.task_id, budget
                )
            )
        if self.quotas is not None:
            quota = await self.quotas.reservation(
                deliberation.tenant, deliberation.task_id, datetime.fromtimestamp(submitted, UTC)
            )
            parts += [quota] if quota else []
        return Reservations(parts) if parts else None

    async def _run_recorded(
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
            refusal = first_error(group)
        if isinstance(refusal, Temporary):
            raise refusal
        if refusal is not None:
            await fail_all_seats(self.bus, deliberation, refusal)
        else:
            owns_work = functools.partial(self._owns_task, deliberation.task_id)
            steering = self._running[deliberation.task_id].steering

            async def publish_partial(writing: Writing) -> None:
                data = {"task_id": deliberation.task_id, **asdict(writing)}
                await self.bus.signal(Channel.GROWING.of(deliberation.task_id), data)

            control = Control(owns_work, reservation, steering, publish_partial, pause_gate)
            parts = replace(self.parts, control=control)
            await deliberate(deliberation, prepared, parts, recording)


def _raise_exception_of(task: asyncio.Task[None]) -> None:
    """Raise the exception of a task, if it was not cancelled."""
    if not task.cancelled():
        task.result()


def _time_of(event: Event) -> float:
    """Return the time of an event in Unix seconds, or the current time if it has none."""
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:
        return time.time()


def _span_attributes(deliberation: Deliberation) -> dict[str, str | int]:
    """Return the span attributes of a deliberation."""
    return {
        "moothall.task_id": deliberation.task_id,
        "moothall.tenant": deliberation.tenant,
        "moothall.role": deliberation.role,
        "moothall.protocol": deliberation.protocol,
        "moothall.seats": len(deliberation.seats),
    }
