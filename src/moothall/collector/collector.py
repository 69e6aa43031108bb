"""The collector: consumes the events of deliberations and decides each deliberation exactly once.

Crash safety: an event that makes a deliberation ready is acked only after the decision is on the
log, so it is redelivered after a crash. A decision depends on the first prefix of the log that
requires one, so a repeated decision is the same. A collector that received the whole prefix in
order has it in memory; otherwise (after a restart, a redelivery, or at a deadline) it reads the
log. Delivering the same diff on the same base gives the same commit, and the id of the decision's
event depends on the deliberation only. Deliberations that only wait for their deadline are found by
their status documents.

Concurrent collectors: they share the consumer, so each receives some of a deliberation's events. It
reads the log if one of them may require a decision; the receiver of the last event sees all of them
there. A decision is recorded only if there is none, and a status document never goes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cachetools import FIFOCache

from moothall import telemetry
from moothall.collector.decide import decide, deliver, is_ready, pending_outcome
from moothall.collector.fold import DeliberationState, fold, task_key_of
from moothall.collector.records import (
    DOCUMENTS,
    fold_or_skip,
    publish_status,
    read_log,
    record_decision,
    replay_state,
    with_log_time,
)
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import TaskKey, check_task_key
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest, MoothallError
from moothall.ports import Bus, Repositories
from moothall.telemetry.tracing import write_of

log = telemetry.get_logger(__name__)

DURABLE = "collector"
_MAX_CONCURRENT = 32  # deliberations whose decisions are delivered concurrently
_MAX_DECIDED_IDS = 10_000
_MAX_UNPUBLISHED = 96  # requests that wait for their status document, of the messages in flight
_DECIDING_EVENTS = {
    EventType.SEAT_FINISHED,
    EventType.DELIBERATION_REQUESTED,
    EventType.DELIBERATION_CANCELLED,
    EventType.DELIBERATION_DECIDED,
}
"""The event types that can require a decision. If a deliberation is ready at an event of another
type, the event that made it ready is not acked yet.
"""


@dataclass(slots=True)
class _ActiveDeliberation:
    """An undecided deliberation in memory."""

    state: DeliberationState
    is_complete: bool = False
    """True if this collector received every event since the request, in the order of the log."""
    settled_state: DeliberationState | None = None
    """The first state that required a decision; set only if `is_complete`."""
    published_status: DeliberationStatus | None = None
    decision_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during the decision."""
    last_traceparent: str = ""
    """The traceparent of the last folded event, which led to the decision."""
    document_idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no status document is being published."""
    first_document_at: float = 0.0
    """When the first status document is published (monotonic seconds). A deliberation that ends
    earlier needs none.
    """
    document_published: asyncio.Future[None] | None = None
    """Done once a status document is published or not needed. Until then the request is not acked,
    since no other record contains the deadline.
    """

    def __post_init__(self) -> None:
        self.document_idle.set()

    def mark_document_published(self) -> None:
        if self.document_published is not None and not self.document_published.done():
            self.document_published.set_result(None)


class Collector:
    """The collector of a process.

    lock: returns a lock across the collectors on a bus, by name.

    Memory: the facts of active deliberations, and the ids of recently decided ones.
    """

    def __init__(
        self,
        bus: Bus,
        repositories: Repositories,
        *,
        lock: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
        tick_seconds: float = 1.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._bus = bus
        self._repositories = repositories
        self._lock = lock
        self._tick_seconds = tick_seconds
        self._clock = clock
        self._active: dict[TaskKey, _ActiveDeliberation] = {}
        self._loads: dict[TaskKey, asyncio.Event] = {}
        self._decided: FIFOCache[TaskKey, None] = FIFOCache(_MAX_DECIDED_IDS)
        self._unpublished_count = 0
        self._last_place = self._last_seq = 0

    @property
    def active_count(self) -> int:
        """The number of active deliberations in memory."""
        return len(self._active)

    def deliberations(self) -> tuple[Deliberation, ...]:
        """Return the active deliberations: requested and not decided."""
        return tuple(
            active.state.requested.value
            for active in self._active.values()
            if active.state.requested is not None
        )

    def states(self) -> tuple[DeliberationState, ...]:
        """Return the states of the active deliberations."""
        return tuple(active.state for active in self._active.values())

    async def run(self) -> None:
        """Resume the open deliberations, then consume events, and follow deadlines and other
        collectors, until cancelled.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._bus.consume(
                    DURABLE, self.handle, concurrency=_MAX_CONCURRENT, glance=self.try_fold
                ),
                name="collector-events",
            )
            group.create_task(self._follow_documents(), name="collector-documents")
            group.create_task(self._follow_steering(), name="collector-steering")
            group.create_task(self._watch_deadlines(group), name="collector-deadlines")
            group.create_task(self._dispatch_work(), name="collector-work")

    async def _dispatch_work(self) -> None:
        async with self._lock("work"):
            await self._bus.dispatch()

    def try_fold(self, recorded: Recorded) -> bool | asyncio.Future[None]:
        """Fold an event of an active deliberation without I/O.

        Return True if the event needs no more work, or a future that completes when it needs none.
        Return False if `handle` must process it.
        """
        is_first = self._check_order(recorded)
        event = recorded.event
        task_id = event.data.get("task_id")
        if not isinstance(task_id, str):
            return False  # `handle` reports what is wrong with it
        task_key = TaskKey(task_id)
        active = self._active.get(task_key)
        if task_key in self._decided or _is_being_decided(event, active):
            return True
        is_request = event.type is EventType.DELIBERATION_REQUESTED
        try:
            if active is None:  # if not new, `handle` reads it from the log
                return (
                    is_request
                    and is_first
                    and task_key not in self._loads
                    and self._add_active(recorded)
                )
            active.state = fold(active.state, with_log_time(recorded))
        except InvalidRequest:
            return False
        active.last_traceparent = event.traceparent
        if event.type in _DECIDING_EVENTS and (
            not active.is_complete or active.state.settled or active.state.decided is not None
        ):
            if active.state.settled and active.is_complete and active.settled_state is None:
                active.settled_state = active.state
            return False
        return (
            is_request and active.document_published
        ) or True  # a request may be delivered again

    def _add_active(self, recorded: Recorded) -> bool | asyncio.Future[None]:
        """Keep a new deliberation in memory. Raises `InvalidRequest`.

        Its status document is delayed, unless many others already wait for theirs, since each of
        them holds a message.
        """
        state = fold(None, with_log_time(recorded))
        active = self._active[check_task_key(state.task_key)] = _ActiveDeliberation(
            state, is_complete=True
        )
        if self._unpublished_count >= _MAX_UNPUBLISHED:
            return False
        active.first_document_at = time.monotonic() + self._tick_seconds
        active.document_published = asyncio.get_running_loop().create_future()
        active.document_published.add_done_callback(self._on_document_published)
        self._unpublished_count += 1
        return active.document_published

    def _on_document_published(self, _: asyncio.Future[None]) -> None:
        self._unpublished_count -= 1

    def _check_order(self, recorded: Recorded) -> bool:
        """Return whether this is the first delivery of its event.

        If it is not the next delivery in order, no active deliberation is complete any more.
        """
        place = int(recorded.extra.get("place", "0"))
        is_first = recorded.extra.get("deliveries") == "1"
        if place and place == self._last_place:
            return is_first  # it is in the same message as the last event
        if place != self._last_place + 1 or (is_first and not recorded.comes_after(self._last_seq)):
            for active in self._active.values():
                active.is_complete = False
        self._last_place = place
        self._last_seq = max(self._last_seq, recorded.message or recorded.seq)
        return is_first

    async def handle(self, recorded: Recorded) -> None:
        """Fold one event, then publish and decide as required. Returning acks the event.

        Raises `InvalidRequest` for a malformed event, `Temporary` if the bus fails.
        """
        event = with_log_time(recorded)
        task_key = check_task_key(task_key_of(event))
        if task_key in self._decided:
            return
        was_active = task_key in self._active or task_key in self._loads
        active = await self._find_active(task_key)
        if active is None:
            fold(None, event)  # raises for a malformed event, but not for a stray one
            return
        active.state = fold(active.state, event)
        active.last_traceparent = event.traceparent
        if was_active and event.type in _DECIDING_EVENTS and not active.is_complete:
            # Other collectors received the missing events.
            async with aclosing(read_log(self._bus, task_key)) as events:
                async for later_event in events:
                    active.state = fold_or_skip(active.state, later_event) or active.state
        await self._update_deliberation(active)

    async def _find_active(self, task_key: TaskKey) -> _ActiveDeliberation | None:
        """Return the active deliberation, read from the log if necessary; None if it was not
        requested or is decided.
        """
        while task_key in self._loads:
            await self._loads[task_key].wait()
        if task_key in self._active or task_key in self._decided:
            return self._active.get(task_key)
        loaded = self._loads[task_key] = asyncio.Event()
        try:
            state = await replay_state(self._bus, task_key)
            if state is not None and state.requested is not None:
                self._active[task_key] = _ActiveDeliberation(state)
        finally:
            del self._loads[task_key]
            loaded.set()
        return self._active.get(task_key)

    async def _update_deliberation(self, active: _ActiveDeliberation) -> None:
        if active.state.decided is not None or is_ready(active.state, self._clock()):
            await self._decide_once(active)
        else:
            await self._publish_status(active)

    async def _publish_status(self, active: _ActiveDeliberation) -> None:
        """Publish the status document if it changed.

        Only one task at a time does so, so that the status never goes back.
        """
        if not active.document_idle.is_set():
            return  # the running task checks again
        active.document_idle.clear()
        try:
            while (
                document := pending_outcome(active.state)
            ) is not None and document.status is not active.published_status:
                await publish_status(self._bus, document)
                active.published_status = document.status
            active.mark_document_published()
        finally:
            active.document_idle.set()

    async def _decide_once(self, active: _ActiveDeliberation) -> None:
        """Decide from the log, deliver and record. Concurrent callers wait, then find it
        decided.
        """
        requested = active.state.requested
        attributes = {"moothall.task_id": active.state.task_key}
        async with active.decision_lock:
            if active.state.task_key in self._decided:
                return
            if active.state.decided is not None:
                await self._publish_outcome(active, active.state.decided.value)
                return
            with (
                telemetry.span(
                    "decide",
                    attributes,
                    parent=requested.traceparent if requested else "",
                    links=[active.last_traceparent],
                ) as span,
                telemetry.bound(task_id=active.state.task_key),
                telemetry.metrics.DECIDE_SECONDS.time(),
            ):
                async with self._lock(f"decide.{active.state.task_key}"):
                    await self._publish_decision(active, span)

    async def _publish_decision(self, active: _ActiveDeliberation, span: telemetry.Span) -> None:
        if active.state.task_key in self._decided:
            return  # by another process
        state = active.settled_state or await replay_state(
            self._bus, active.state.task_key, until_settled=True
        )
        if state is None or state.requested is None:
            self._active.pop(active.state.task_key, None)
            active.mark_document_published()
            return
        if state.decided is not None:
            await self._publish_outcome(active, state.decided.value)
            return
        if not is_ready(state, self._clock()):
            return  # it was paused in the meantime
        deliberation = state.requested.value
        outcome = decide(state)
        if outcome.winner_id and outcome.final_state == "committed":
            outcome = await deliver(self._repositories, deliberation, outcome)
        if (
            existing := await record_decision(
                self._bus,
                self._decision_event(deliberation, outcome, state.requested.event_id),
                state.task_key,
            )
        ) is not None:
            await self._publish_outcome(active, existing)
            return
        log.info(
            "decided",
            task_id=outcome.task_id,
            status=outcome.status,
            winner=outcome.winner_id,
            branch=outcome.branch,
        )
        _record_metrics(outcome, span)
        await self._publish_outcome(active, outcome)

    async def _publish_outcome(self, active: _ActiveDeliberation, outcome: Outcome) -> None:
        """Publish the outcome and forget the deliberation."""
        while not active.document_idle.is_set():  # another waiting task may have been faster
            await active.document_idle.wait()
        active.document_idle.clear()
        try:
            await self._bus.put(active.state.task_key, dump(outcome))
            self._forget_deliberation(active.state.task_key)
            active.mark_document_published()
        finally:
            active.document_idle.set()

    def _forget_deliberation(self, task_key: TaskKey) -> None:
        """Remove a decided deliberation from memory."""
        if (active := self._active.pop(task_key, None)) is not None:
            active.mark_document_published()
        self._decided[task_key] = None

    def _decision_event(self, deliberation: Deliberation, outcome: Outcome, cause: str) -> Event:
        time = self._clock().isoformat()
        return write_of(
            deliberation, EventType.DELIBERATION_DECIDED, dump(outcome), cause=cause, time=time
        )

    async def _follow_documents(self) -> None:
        """Load open deliberations, whichever collector received their requests, since only their
        deadline may remain. Forget those that others decide.
        """
        async with aclosing(self._bus.bucket(DOCUMENTS).follow()) as documents:
            async for name, document in documents:
                task_key = TaskKey(name)
                if not _is_open(document.get("status")):
                    self._forget_deliberation(task_key)
                    continue
                while task_key not in self._active and task_key not in self._decided:
                    try:
                        if await self._find_active(task_key) is None:
                            break
                    except MoothallError as error:
                        log.warning(
                            "could not load a deliberation yet",
                            task_id=task_key,
                            code=error.code,
                            reason=error.message,
                        )
                        await asyncio.sleep(self._tick_seconds)

    async def _follow_steering(self) -> None:
        """Fold pauses, which postpone deadlines, whichever collector receives them."""
        async with aclosing(self._bus.follow((Channel.WORDS.all,))) as messages:
            async for recorded in messages:
                active = self._active.get(TaskKey(str(recorded.event.data.get("task_id"))))
                if active is not None:
                    active.state = fold_or_skip(active.state, recorded) or active.state

    async def _watch_deadlines(self, group: asyncio.TaskGroup) -> None:
        """Decide deliberations whose deadline has passed. Retry decisions that failed
        temporarily.
        """
        while True:
            await asyncio.sleep(self._tick_seconds)
            now, monotonic_now = self._clock(), time.monotonic()
            for task_key, active in list(self._active.items()):
                document = (
                    pending_outcome(active.state)
                    if monotonic_now >= active.first_document_at
                    else None
                )
                if document is not None and document.status is not active.published_status:
                    group.create_task(self._try_publish_status(active), name=f"show-{task_key}")
                # If a decided deliberation is still in memory, its outcome could not be published,
                # and its event has been acked.
                if not active.decision_lock.locked() and (
                    active.state.decided is not None or is_ready(active.state, now)
                ):
                    group.create_task(self._try_decide(active), name=f"decide-{task_key}")

    async def _try_publish_status(self, active: _ActiveDeliberation) -> None:
        """Publish a delayed status document. A deliberation that ends within a tick needs none."""
        try:
            if self._active.get(active.state.task_key) is active:
                await self._publish_status(active)
        except MoothallError as error:
            log.warning(
                "could not publish a status yet",
                task_id=active.state.task_key,
                code=error.code,
                reason=error.message,
            )

    async def _try_decide(self, active: _ActiveDeliberation) -> None:
        try:
            await self._decide_once(active)
        except MoothallError as error:
            log.warning(
                "could not decide yet",
                task_id=active.state.task_key,
                code=error.code,
                reason=error.message,
            )


def _record_metrics(outcome: Outcome, span: telemetry.Span) -> None:
    """Record the outcome in the span and the metrics. After a crash it may be counted again."""
    span.set({"moothall.status": outcome.status, "moothall.final_state": outcome.final_state})
    span.set({"moothall.winner": outcome.winner_id or "", "moothall.proven": outcome.proven})
    telemetry.metrics.DELIBERATIONS_DECIDED.add(outcome.status, outcome.final_state, outcome.role)
    telemetry.metrics.DELIBERATION_SECONDS.observe(outcome.duration_ms / 1000, outcome.status)
    for seat in outcome.seats:
        telemetry.metrics.SEATS_FINISHED.add(seat.status, outcome.role)


def _is_being_decided(event: Event, active: _ActiveDeliberation | None) -> bool:
    """Return whether an event is a decision, and its deliberation is being decided here: this
    publishes the outcome that is on the log, or fails and is repeated.
    """
    return (
        event.type is EventType.DELIBERATION_DECIDED
        and active is not None
        and active.decision_lock.locked()
    )


def _is_open(status: object) -> bool:
    return status in {DeliberationStatus.PENDING, DeliberationStatus.IN_PROGRESS}
