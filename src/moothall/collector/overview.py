"""Tasks at a glance: what is under way from memory, what ended from the log, read when somebody
asks.

Nothing is counted on the way of a deliberation. What ended before the log was pruned is not in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from cachetools import FIFOCache, LRUCache

from moothall.collector.fold import UNDATED, DeliberationState
from moothall.collector.progress import Progress, describe, percent_of, status_of
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, key_of, own_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.status import TaskSeat, TaskView
from moothall.domain.task import Deliberation
from moothall.domain.topic import Channel, deliberation_topics
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Log

_TOPICS = (Channel.RESPONSES.all,)
_KEPT = 1000  # of a tenant
_TENANTS = 1000
_FOLLOWED = 100
_TEXT = 500
_FAILED = {DeliberationStatus.FAILED, DeliberationStatus.TIMEOUT}


@dataclass(slots=True)
class _Reading:
    """How far a deliberation's events were read, and what they said. Two hosts at once record the
    same fact twice: it counts once.
    """

    seq: int = 0
    known: set[str] = field(default_factory=set)
    progress: Progress = field(default_factory=Progress)


class Overview:
    """Deliberations at a glance. `under_way` gives what is known of the deliberations that are not
    decided yet.

    Memory: a few lines of each tenant's last thousand tasks, and the facts of the hundred that were
    looked at last.
    """

    def __init__(self, log: Log, under_way: Callable[[], Iterable[DeliberationState]]) -> None:
        self._log = log
        self._under_way = under_way
        self._ended: LRUCache[str, FIFOCache[str, TaskView]] = LRUCache(_TENANTS)
        self._seq = 0
        self._reading = asyncio.Lock()
        self._followed: LRUCache[str, _Reading] = LRUCache(_FOLLOWED)
        self._following = asyncio.Lock()

    async def latest(self, who: Principal, state: str = "", limit: int = 50) -> Sequence[TaskView]:
        """Return the tenant's tasks: those under way, then those that ended, the latest first.
        `state` narrows: live, ended, failed.
        """
        ended = await self._read(who.tenant)
        live = [] if state in {"ended", "failed"} else self._live(who.tenant, ended)
        over = [] if state == "live" else [*ended.values()][::-1]
        if state == "failed":
            over = [view for view in over if view.status in _FAILED]
        shown = [*sorted(live, key=lambda view: view.requested, reverse=True), *over][:limit]
        return [await self._for_tenant(view, who) for view in shown]

    async def get(self, task_id: str, who: Principal) -> TaskView:
        """Return one. Raises `NotFound`, also for another tenant's."""
        ended = await self._read(who.tenant)
        key = key_of(task_id, who.tenant)
        found = ended.get(key) or next(
            (view for view in self._live(who.tenant, ended) if view.task_id == key), None
        )
        if found is None:
            raise NotFound(f"no task {task_id!r}")
        return await self._for_tenant(found, who)

    async def find(self, task_ids: Iterable[str], who: Principal) -> Mapping[str, TaskView]:
        """Return those of a tenant's tasks, by id; what is not known is left out."""
        ended = await self._read(who.tenant)
        known = {**{view.task_id: view for view in self._live(who.tenant, ended)}, **ended}
        return {name: known[key] for name in task_ids if (key := key_of(name, who.tenant)) in known}

    async def thread(self, task_id: str, who: Principal) -> Sequence[TaskView]:
        """Return the tasks of a conversation up to one, the first first, as far as they are known.
        Raises `NotFound`, also for another tenant's.
        """
        found = [await self.get(task_id, who)]
        while (before := found[0].follows) and len(found) < _FOLLOWED:
            try:
                found.insert(0, await self.get(before, who))
            except NotFound:
                break  # it was removed
        return found

    async def progress(self, task_id: str, who: Principal) -> Progress:
        """Return how far a deliberation is, seat by seat. Read from the log since it was last asked
        for. Raises `NotFound`, also for another tenant's.
        """
        key = key_of(check_id(task_id, "task_id"), who.tenant)
        async with self._following:
            reading = self._followed.get(key) or _Reading()
            async for recorded in self._log.replay(deliberation_topics(key), reading.seq):
                reading.seq = recorded.seq
                if recorded.event.tenant == who.tenant and recorded.event.id not in reading.known:
                    reading.known.add(recorded.event.id)
                    reading.progress, _ = describe(reading.progress, recorded)
            state = reading.progress.state
            if state is None or state.requested is None:
                raise NotFound(f"no task {task_id!r}")
            self._followed[key] = reading
            return reading.progress

    def _live(self, tenant: str, ended: Mapping[str, TaskView]) -> Sequence[TaskView]:
        found = (
            live_view(state)
            for state in self._under_way()
            if state.requested and state.requested.value.tenant == tenant
        )
        return [view for view in found if view.task_id not in ended]

    async def _read(self, tenant: str) -> Mapping[str, TaskView]:
        """Read the decisions that came since the last question."""
        async with self._reading:
            async for recorded in self._log.replay(_TOPICS, self._seq):
                self._take(recorded)
                self._seq = recorded.seq
        return self._ended.get(tenant, {})

    def _take(self, recorded: Recorded) -> None:
        event = recorded.event
        if event.type is not EventType.DELIBERATION_DECIDED:
            return
        try:
            outcome = load(Outcome, event.data)
        except InvalidRequest:
            return  # the collector's own; of a version that this one cannot read
        of = self._ended.setdefault(event.tenant, FIFOCache(_KEPT))
        of.setdefault(
            outcome.task_id, ended_view(outcome, event.time or recorded.extra.get("time", ""))
        )

    async def _for_tenant(self, view: TaskView, who: Principal) -> TaskView:
        """As its tenant knows it."""
        return replace(await self._describe(view), task_id=own_id(view.task_id, who.tenant))

    async def _describe(self, view: TaskView) -> TaskView:
        """Add what only the request says."""
        if view.description:
            return view
        recorded = await self._log.first(Channel.RESULTS.of(view.task_id))
        if recorded is None or recorded.event.type is not EventType.DELIBERATION_REQUESTED:
            return view
        full = _with_request(view, load(Deliberation, recorded.event.data), recorded.event.time)
        for of in self._ended.values():
            if of.get(view.task_id) is view:
                of[view.task_id] = full
        return full


def live_view(state: DeliberationState) -> TaskView:
    """Return how a deliberation that is under way stands; only of one that was requested."""
    if state.requested is None:
        raise ValueError(f"deliberation {state.task_id!r} was never requested")
    asked = state.requested
    seats = tuple(seat_of(state, seat) for seat in asked.value.seats)
    view = TaskView(
        state.task_id,
        status_of(state),
        seats=seats,
        progress=percent_of(state),
        paused=state.pauses.held,
    )
    return _with_request(view, asked.value, _stamp(asked.time))


def ended_view(outcome: Outcome, time: str) -> TaskView:
    """Return how a deliberation ended."""
    return TaskView(
        outcome.task_id,
        outcome.status,
        role=outcome.role,
        seats=tuple(
            TaskSeat(seat.seat, seat.status.value, seat.error_code, seat.error_message[:_TEXT])
            for seat in outcome.seats
        ),
        progress=100,
        error=outcome.error_message[:_TEXT],
        final_state=outcome.final_state,
        winner_id=outcome.winner_id,
        proven=outcome.proven,
        evidence_level=outcome.evidence_level,
        branch=outcome.branch,
        ended=time,
        duration_ms=outcome.duration_ms,
    )


def _with_request(view: TaskView, d: Deliberation, time: str) -> TaskView:
    return replace(
        view,
        role=d.role,
        description=d.description[:_TEXT],
        protocol=d.protocol,
        repository=d.repository.id if d.repository else "",
        base_sha=d.base_sha or "",
        principal=d.principal,
        requested=time,
        follows=own_id(d.follows, d.tenant),
        forked=own_id(d.fork.task_id, d.tenant) if d.fork else "",
        agent=d.agent.name if d.agent else "",
    )


def _stamp(time: datetime) -> str:
    return "" if time == UNDATED else time.isoformat(timespec="milliseconds")


def seat_of(state: DeliberationState, seat: str) -> TaskSeat:
    """Return how a seat stands."""
    ended = state.finished.get(seat) or state.failures.get(seat)
    if ended is not None:
        value = ended.value
        return TaskSeat(seat, value.status.value, value.error_code, value.error_message[:_TEXT])
    if any(fact.value.seat == seat for fact in state.proposals.values()):
        return TaskSeat(seat, "proposed")
    return TaskSeat(seat, "working" if state.started is not None else "waiting")
