"""The collector: consumes what councils do, and decides each deliberation exactly once.

How it survives being killed anywhere: an event that makes a deliberation ready is acked only after
the decision is on the log, so it comes again; a decision is made from the first prefix of the log
that
calls for one, so it comes out the same. Who has seen all of that prefix come, in order, knows it;
who has not (after a restart, a redelivery, at a deadline) reads the log. Delivering the same diff
on the same base
gives the same commit; and the decision's event has an id that depends on the deliberation only.
What waits for its deadline alone is found by its status document.

How several work side by side: they share the consumer, so each is given some of a deliberation's
events and reads the log where one of them may call for a decision; whoever had the last one sees
them all there. A decision is recorded only where there is none, and a document never goes back,
whoever is slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cachetools import FIFOCache

from moothall import telemetry
from moothall.collector.decide import decide, pending_outcome, ready
from moothall.collector.delivery import deliver
from moothall.collector.fold import DeliberationState, fold, task_of
from moothall.collector.records import DOCUMENTS, fold_known, read, record, replay, show, with_time
from moothall.config import LimitSettings
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import check_key
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest, MoothallError
from moothall.ports import Bus, Repositories
from moothall.telemetry.events import write_of

log = telemetry.get_logger(__name__)

DURABLE = "collector"
_AT_ONCE = 32  # deliberations whose decisions are delivered side by side
_REMEMBERED = 10_000
_UNTOLD = 96  # of the messages that its consumer holds at a time
_SETTLING = {
    EventType.SEAT_FINISHED,
    EventType.DELIBERATION_REQUESTED,
    EventType.DELIBERATION_CANCELLED,
    EventType.DELIBERATION_DECIDED,
}
"""What can call for a decision. Of an event of another type it follows that the one that did is not
acked yet.
"""


@dataclass(slots=True)
class _Case:
    """One undecided deliberation in memory."""

    state: DeliberationState
    whole: bool = False
    """Whether every event since the request came here, in the order of the log."""
    prefix: DeliberationState | None = None
    """The first state that called for a decision, of a deliberation that came whole."""
    shown: DeliberationStatus | None = None
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever decides it."""
    latest: str = ""
    """The traceparent of the event that was folded last: what a decision came of."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nobody is putting its status document."""
    due: float = 0.0
    """When it gets its first document (monotonic seconds): one that has ended by then needs none of
    its way.
    """
    told: asyncio.Future[None] | None = None
    """Done once it has a document, or needs none: until then its request is not acked, for nothing
    else tells of its deadline.
    """

    def __post_init__(self) -> None:
        self.quiet.set()

    def tell(self) -> None:
        if self.told is not None and not self.told.done():
            self.told.set_result(None)


class Collector:
    """`run` goes on until cancelled. `alone` keeps others on the same bus from what somebody is at,
    by its name; they wait.

    Memory: the facts of the deliberations that are under way, and the ids of the last decided ones.
    """

    def __init__(
        self,
        bus: Bus,
        repositories: Repositories,
        limits: LimitSettings,
        *,
        alone: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
        tick_seconds: float = 1.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._bus = bus
        self._repositories = repositories
        self._quorum = limits.quorum
        self._grace = timedelta(seconds=limits.grace_seconds)
        self._alone = alone
        self._tick_seconds = tick_seconds
        self._clock = clock
        self._cases: dict[str, _Case] = {}
        self._loading: dict[str, asyncio.Event] = {}
        self._decided: FIFOCache[str, None] = FIFOCache(_REMEMBERED)
        self._untold = 0
        self._place = self._seq = 0

    @property
    def under_way(self) -> int:
        """Deliberations in memory."""
        return len(self._cases)

    def deliberations(self) -> tuple[Deliberation, ...]:
        """Return those in memory: asked for and not decided."""
        return tuple(
            case.state.requested.value
            for case in self._cases.values()
            if case.state.requested is not None
        )

    def states(self) -> tuple[DeliberationState, ...]:
        """Return what is known of those in memory."""
        return tuple(case.state for case in self._cases.values())

    async def run(self) -> None:
        """Take up what an earlier run left, then consume, watch deadlines and what others do until
        cancelled.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._bus.consume(DURABLE, self.handle, concurrency=_AT_ONCE, glance=self.glance),
                name="collector-events",
            )
            group.create_task(self._follow_documents(), name="collector-documents")
            group.create_task(self._follow_words(), name="collector-words")
            group.create_task(self._watch_deadlines(group), name="collector-deadlines")

    def glance(self, recorded: Recorded) -> bool | asyncio.Future[None]:
        """Fold an event of a deliberation in memory; whether that was all, or when. What calls for
        more, `handle` does.
        """
        first = self._in_order(recorded)
        event = recorded.event
        task_id = event.data.get("task_id")
        if not isinstance(task_id, str):
            return False  # its handling says what is wrong with it
        if task_id in self._decided:
            return True
        case = self._cases.get(task_id)
        asked = event.type is EventType.DELIBERATION_REQUESTED
        try:
            if case is None:  # else it is to be read from the log
                return asked and first and task_id not in self._loading and self._open(recorded)
            case.state = fold(case.state, with_time(recorded))
        except InvalidRequest:
            return False
        case.latest = event.traceparent
        if event.type in _SETTLING and (
            not case.whole or case.state.settled or case.state.decided is not None
        ):
            if case.state.settled and case.whole and case.prefix is None:
                case.prefix = case.state
            return False
        return (asked and case.told) or True  # a request may be delivered again

    def _open(self, recorded: Recorded) -> bool | asyncio.Future[None]:
        """Keep a fresh deliberation in memory. Its document is put off; not where many wait for
        theirs already, for each is a message in hand. Raises `InvalidRequest`.
        """
        state = fold(None, with_time(recorded))
        case = self._cases[check_key(state.task_id, "task_id")] = _Case(state, whole=True)
        if self._untold >= _UNTOLD:
            return False
        case.due = time.monotonic() + self._tick_seconds
        case.told = asyncio.get_running_loop().create_future()
        case.told.add_done_callback(self._is_told)
        self._untold += 1
        return case.told

    def _is_told(self, _: asyncio.Future[None]) -> None:
        self._untold -= 1

    def _in_order(self, recorded: Recorded) -> bool:
        """Note whether this is the next delivery and the first of its event. Else no deliberation
        is whole any more.
        """
        place = int(recorded.extra.get("place", "0"))
        first = recorded.extra.get("deliveries") == "1"
        if place and place == self._place:
            return first  # it came in one message with the last
        if place != self._place + 1 or (first and not recorded.comes_after(self._seq)):
            for case in self._cases.values():
                case.whole = False
        self._place = place
        self._seq = max(self._seq, recorded.message or recorded.seq)
        return first

    async def handle(self, recorded: Recorded) -> None:
        """Fold one event; show and decide what it makes ready. Returning is the ack.

        Raises `InvalidRequest` for a malformed event, `Temporary` where the bus fails.
        """
        event = with_time(recorded)
        task_id = check_key(task_of(event), "task_id")
        if task_id in self._decided:
            return
        known = task_id in self._cases or task_id in self._loading
        case = await self._case(task_id)
        if case is None:
            fold(None, event)  # still tells a malformed event from a stray one
            return
        case.state = fold(case.state, event)
        case.latest = event.traceparent
        if known and event.type in _SETTLING and not case.whole:
            async with aclosing(
                read(self._bus, task_id)
            ) as events:  # what is missing here came to others
                async for other in events:
                    case.state = fold_known(case.state, other) or case.state
        await self._advance(case)

    async def _case(self, task_id: str) -> _Case | None:
        """Return the deliberation in memory, read from the log if need be; None if nobody asked for
        it or it is decided.
        """
        while task_id in self._loading:
            await self._loading[task_id].wait()
        if task_id in self._cases or task_id in self._decided:
            return self._cases.get(task_id)
        loaded = self._loading[task_id] = asyncio.Event()
        try:
            state = await replay(self._bus, task_id)
            if state is not None and state.requested is not None:
                self._cases[task_id] = _Case(state)
        finally:
            del self._loading[task_id]
            loaded.set()
        return self._cases.get(task_id)

    async def _advance(self, case: _Case) -> None:
        if case.state.decided is not None or ready(case.state, self._clock(), self._grace):
            await self._settle(case)
        else:
            await self._show(case)

    async def _show(self, case: _Case) -> None:
        """Put the status document when it changed. One at a time, so that it never goes back."""
        if not case.quiet.is_set():
            return  # whoever is at it looks again
        case.quiet.clear()
        try:
            while (
                document := pending_outcome(case.state)
            ) is not None and document.status is not case.shown:
                await show(self._bus, document)
                case.shown = document.status
            case.tell()
        finally:
            case.quiet.set()

    async def _settle(self, case: _Case) -> None:
        """Decide from the log, deliver, record. Whoever comes while another is at it waits, and
        finds it done.
        """
        asked = case.state.requested
        about = {"moothall.task_id": case.state.task_id}
        async with case.settling:
            if case.state.task_id in self._decided:
                return
            if case.state.decided is not None:
                await self._close(case, case.state.decided.value)
                return
            with (
                telemetry.span(
                    "decide", about, parent=asked.traceparent if asked else "", links=[case.latest]
                ) as span,
                telemetry.bound(task_id=case.state.task_id),
                telemetry.metrics.DECIDE_SECONDS.time(),
            ):
                async with self._alone(f"decide.{case.state.task_id}"):
                    await self._decide(case, span)

    async def _decide(self, case: _Case, span: telemetry.Span) -> None:
        if case.state.task_id in self._decided:
            return  # by another process that was at it
        state = case.prefix or await replay(self._bus, case.state.task_id, until_settled=True)
        if state is None or state.requested is None:
            self._cases.pop(case.state.task_id, None)
            case.tell()
            return
        if state.decided is not None:
            await self._close(case, state.decided.value)
            return
        if not ready(state, self._clock(), self._grace):
            return  # it was paused meanwhile
        deliberation = state.requested.value
        outcome = decide(state, quorum=self._quorum, grace=self._grace)
        if outcome.winner_id and outcome.final_state == "committed":
            outcome = await deliver(self._repositories, deliberation, outcome)
        if (
            other := await record(
                self._bus,
                self._decision(deliberation, outcome, state.requested.event_id),
                state.task_id,
            )
        ) is not None:
            await self._close(case, other)
            return
        log.info(
            "decided",
            task_id=outcome.task_id,
            status=outcome.status,
            winner=outcome.winner_id,
            branch=outcome.branch,
        )
        _count(outcome, span)
        await self._close(case, outcome)

    async def _close(self, case: _Case, outcome: Outcome) -> None:
        """Show the end and forget the rest."""
        while not case.quiet.is_set():  # another who waited may have been quicker
            await case.quiet.wait()
        case.quiet.clear()
        try:
            await self._bus.put(outcome.task_id, dump(outcome))
            self._forget(outcome.task_id)
            case.tell()
        finally:
            case.quiet.set()

    def _forget(self, task_id: str) -> None:
        """It is decided, and shown."""
        if (case := self._cases.pop(task_id, None)) is not None:
            case.tell()
        self._decided[task_id] = None

    def _decision(self, deliberation: Deliberation, outcome: Outcome, cause: str) -> Event:
        time = self._clock().isoformat()
        return write_of(
            deliberation, EventType.DELIBERATION_DECIDED, dump(outcome), cause=cause, time=time
        )

    async def _follow_documents(self) -> None:
        """Load what is open, whoever was given its request: nothing else may come of it but its
        deadline. Forget what others decide.
        """
        async with aclosing(self._bus.bucket(DOCUMENTS).follow()) as documents:
            async for key, document in documents:
                if not _is_open(document.get("status")):
                    self._forget(key)
                    continue
                while key not in self._cases and key not in self._decided:
                    try:
                        if await self._case(key) is None:
                            break
                    except MoothallError as error:
                        log.warning(
                            "could not take up yet",
                            task_id=key,
                            code=error.code,
                            reason=error.message,
                        )
                        await asyncio.sleep(self._tick_seconds)

    async def _follow_words(self) -> None:
        """A pause moves a deadline, whoever was given it."""
        async with aclosing(self._bus.follow((Channel.WORDS.all,))) as words:
            async for recorded in words:
                case = self._cases.get(str(recorded.event.data.get("task_id")))
                if case is not None:
                    case.state = fold_known(case.state, recorded) or case.state

    async def _watch_deadlines(self, group: asyncio.TaskGroup) -> None:
        """Decide what is due though no event comes. A decision that failed for now is tried
        again.
        """
        while True:
            await asyncio.sleep(self._tick_seconds)
            now, beat = self._clock(), time.monotonic()
            for task_id, case in list(self._cases.items()):
                document = pending_outcome(case.state) if beat >= case.due else None
                if document is not None and document.status is not case.shown:
                    group.create_task(self._show_late(case), name=f"show-{task_id}")
                # One that is decided and still here could not be closed, and its event was acked
                # meanwhile.
                if not case.settling.locked() and (
                    case.state.decided is not None or ready(case.state, now, self._grace)
                ):
                    group.create_task(self._settle_late(case), name=f"decide-{task_id}")

    async def _show_late(self, case: _Case) -> None:
        """Show what was only glanced at: a deliberation that ends within a tick needs no document
        of its way.
        """
        try:
            if self._cases.get(case.state.task_id) is case:
                await self._show(case)
        except MoothallError as error:
            log.warning(
                "could not show yet",
                task_id=case.state.task_id,
                code=error.code,
                reason=error.message,
            )

    async def _settle_late(self, case: _Case) -> None:
        try:
            await self._settle(case)
        except MoothallError as error:
            log.warning(
                "could not decide yet",
                task_id=case.state.task_id,
                code=error.code,
                reason=error.message,
            )


def _count(outcome: Outcome, span: telemetry.Span) -> None:
    """Say how a deliberation ended, to the span and the figures. A crash before may have it counted
    again.
    """
    span.set({"moothall.status": outcome.status, "moothall.final_state": outcome.final_state})
    span.set({"moothall.winner": outcome.winner_id or "", "moothall.proven": outcome.proven})
    telemetry.metrics.DELIBERATIONS_DECIDED.add(outcome.status, outcome.final_state, outcome.role)
    telemetry.metrics.DELIBERATION_SECONDS.observe(outcome.duration_ms / 1000, outcome.status)
    for seat in outcome.seats:
        telemetry.metrics.SEATS_FINISHED.add(seat.status, outcome.role)


def _is_open(status: object) -> bool:
    return status in {DeliberationStatus.PENDING, DeliberationStatus.IN_PROGRESS}
