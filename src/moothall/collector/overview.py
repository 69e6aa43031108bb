"""Overview of tasks: active ones from memory, ended ones from the log, read on request.

Deliberations record nothing for it. It lacks tasks that ended before the log was pruned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from cachetools import FIFOCache, LRUCache

from moothall.collector.fold import UNDATED, DeliberationState
from moothall.collector.progress import Progress, apply_event, percent_of, status_of
from moothall.collector.timeline import ModelCall, ModelCallReader, Timeline, TimelineReader
from moothall.domain.codec import load
from moothall.domain.event import Channel, EventType, Recorded, deliberation_topics
from moothall.domain.ids import Principal, TaskId, TaskKey, key_of, own_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import SeatOutcome
from moothall.domain.status import TaskSeat, TaskView
from moothall.domain.task import Deliberation
from moothall.domain.text import contains_words
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Log

_TOPICS = (Channel.RESPONSES.all,)
_MAX_TASKS_PER_TENANT = 1000
_MAX_TENANTS = 1000
_MAX_FOLLOWED = 100
_MAX_TEXT_CHARS = 500
_FAILED_STATUSES = {DeliberationStatus.FAILED, DeliberationStatus.TIMEOUT}


@dataclass(slots=True)
class _Reading:
    """The position in a deliberation's log, and the progress up to it.

    known_ids: the ids of the events so far. Two concurrent hosts record the same fact twice; it
    counts once.
    """

    seq: int = 0
    known_ids: set[str] = field(default_factory=set)
    progress: Progress = field(default_factory=Progress)
    timeline: TimelineReader = field(default_factory=TimelineReader)


class Overview:
    """An overview of the tasks of all tenants.

    active_states: returns the states of active deliberations.
    after_seq: the event of the log after which ended tasks are read; 0 for all.

    Memory: a short view of each tenant's last 1,000 tasks, and the facts of the 100 tasks that were
    requested last.
    """

    def __init__(
        self,
        log: Log,
        active_states: Callable[[], Iterable[DeliberationState]],
        after_seq: int = 0,
    ) -> None:
        self._log = log
        self._active_states = active_states
        self._ended: LRUCache[str, FIFOCache[TaskKey, TaskView]] = LRUCache(_MAX_TENANTS)
        self._seq = after_seq
        self._ended_lock = asyncio.Lock()
        self._readings: LRUCache[TaskKey, _Reading] = LRUCache(_MAX_FOLLOWED)
        self._progress_lock = asyncio.Lock()

    async def list_tasks(
        self,
        principal: Principal,
        state: str = "",
        limit: int = 50,
        *,
        query: str = "",
        first: int = 0,
    ) -> Sequence[TaskView]:
        """Return the tenant's tasks: active ones, then ended ones, the latest first. Only those
        that contain every word of `query`, from the index `first`.

        state: live, ended or failed; '' for all.
        """
        ended_by_key = await self._read_ended(principal.tenant)
        live = (
            []
            if state in {"ended", "failed"}
            else self._active_views(principal.tenant, ended_by_key).values()
        )
        ended_views = [] if state == "live" else [*ended_by_key.values()][::-1]
        if state == "failed":
            ended_views = [view for view in ended_views if view.status in _FAILED_STATUSES]
        views = [*sorted(live, key=lambda view: view.requested, reverse=True), *ended_views]
        last = first + limit
        if not query:
            return await asyncio.gather(
                *(self._with_request_fields(view, principal.tenant) for view in views[first:last])
            )
        matching_views: list[TaskView] = []
        for view in views:
            complete_view = await self._with_request_fields(view, principal.tenant)
            if matches(complete_view, query):
                matching_views.append(complete_view)
            if len(matching_views) == last:
                break
        return matching_views[first:]

    async def get_task(self, task_id: TaskId, principal: Principal) -> TaskView:
        """Return a task. Raises `NotFound`, also for another tenant's."""
        ended_by_key = await self._read_ended(principal.tenant)
        task_key = key_of(task_id, principal.tenant)
        task = ended_by_key.get(task_key) or self._active_views(principal.tenant, ended_by_key).get(
            task_key
        )
        if task is None:
            raise NotFound(f"no task {task_id!r}")
        return await self._with_request_fields(task, principal.tenant)

    async def find_tasks(
        self, task_ids: Iterable[TaskId], principal: Principal
    ) -> Mapping[TaskId, TaskView]:
        """Return the tenant's tasks by id; unknown ids are omitted."""
        ended = await self._read_ended(principal.tenant)
        views = {**self._active_views(principal.tenant, ended), **ended}
        return {
            task_id: views[task_key]
            for task_id in task_ids
            if (task_key := key_of(task_id, principal.tenant)) in views
        }

    async def get_conversation(self, task_id: TaskId, principal: Principal) -> Sequence[TaskView]:
        """Return the tasks of a conversation up to `task_id`, the first one first, without removed
        ones. Raises `NotFound`, also for another tenant's task.
        """
        tasks = [await self.get_task(task_id, principal)]
        while (previous_id := tasks[0].follows) and len(tasks) < _MAX_FOLLOWED:
            try:
                tasks.insert(0, await self.get_task(previous_id, principal))
            except NotFound:
                break  # it was removed
        return tasks

    async def get_progress(self, task_id: TaskId, principal: Principal) -> Progress:
        """Return the progress of a deliberation by seat. Raises `NotFound`, also for another
        tenant's task.
        """
        return (await self.get_details(task_id, principal))[0]

    async def get_details(self, task_id: TaskId, principal: Principal) -> tuple[Progress, Timeline]:
        """Return the progress and the timeline of a deliberation; only new events are read from
        the log. Raises `NotFound`, also for another tenant's task.
        """
        task_key = key_of(task_id, principal.tenant)
        async with self._progress_lock:
            reading = self._readings.get(task_key) or _Reading()
            async for recorded in self._log.replay(deliberation_topics(task_key), reading.seq):
                reading.seq = recorded.seq
                if (
                    recorded.event.tenant == principal.tenant
                    and recorded.event.id not in reading.known_ids
                ):
                    reading.known_ids.add(recorded.event.id)
                    reading.progress, _ = apply_event(reading.progress, recorded)
                    reading.timeline.add(recorded)
            state = reading.progress.state
            if state is None or state.requested is None:
                raise NotFound(f"no task {task_id!r}")
            self._readings[task_key] = reading
            return reading.progress, reading.timeline.timeline()

    async def get_model_calls(
        self, task_id: TaskId, principal: Principal
    ) -> Mapping[str, ModelCall]:
        """Return the model calls of a deliberation by step, with their prompts. They are read from
        the log each time. Raises `NotFound`, also for another tenant's task.
        """
        reader, is_known = ModelCallReader(), False
        async for recorded in self._log.replay(
            deliberation_topics(key_of(task_id, principal.tenant))
        ):
            if recorded.event.tenant == principal.tenant:
                is_known = True
                reader.add(recorded)
        if not is_known:
            raise NotFound(f"no task {task_id!r}")
        return reader.calls

    def _active_views(
        self, tenant: str, ended: Mapping[TaskKey, TaskView]
    ) -> Mapping[TaskKey, TaskView]:
        return {
            state.task_key: live_view(state)
            for state in self._active_states()
            if state.requested
            and state.requested.value.tenant == tenant
            and state.task_key not in ended
        }

    async def _read_ended(self, tenant: str) -> Mapping[TaskKey, TaskView]:
        """Read the decisions since the last call."""
        async with self._ended_lock:
            async for recorded in self._log.replay(_TOPICS, self._seq):
                self._add_decision(recorded)
                self._seq = recorded.seq
        return self._ended.get(tenant, {})

    def _add_decision(self, recorded: Recorded) -> None:
        event = recorded.event
        if event.type is not EventType.DELIBERATION_DECIDED:
            return
        try:
            outcome = load(Outcome, event.data)
        except InvalidRequest:
            return  # a collector of another version wrote an outcome that this one cannot read
        tenant_views = self._ended.setdefault(event.tenant, FIFOCache(_MAX_TASKS_PER_TENANT))
        task_key = TaskKey(outcome.task_id)
        tenant_views.setdefault(
            task_key,
            _ended_view(
                own_id(task_key, event.tenant),
                outcome,
                event.time or recorded.extra.get("time", ""),
            ),
        )

    async def _with_request_fields(self, view: TaskView, tenant: str) -> TaskView:
        """Add the fields that only the request contains."""
        if view.description:
            return view
        task_key = key_of(view.task_id, tenant)
        recorded = await self._log.first(Channel.RESULTS.of(task_key))
        if recorded is None or recorded.event.type is not EventType.DELIBERATION_REQUESTED:
            return view
        complete_view = _with_request(
            view, load(Deliberation, recorded.event.data), recorded.event.time
        )
        for tenant_views in self._ended.values():
            if tenant_views.get(task_key) is view:
                tenant_views[task_key] = complete_view
        return complete_view


def matches(view: TaskView, query: str) -> bool:
    """Return whether a task contains every word of a query."""
    fields = (view.task_id, view.description, view.repository, view.principal, view.agent)
    return contains_words("\n".join(fields), query)


def live_view(state: DeliberationState) -> TaskView:
    """Return the view of an active, requested deliberation."""
    if state.requested is None:
        raise ValueError(f"deliberation {state.task_key!r} was never requested")
    request = state.requested
    seats = tuple(seat_view(state, seat) for seat in request.value.seats)
    view = TaskView(
        request.value.own_id,
        status_of(state),
        seats=seats,
        progress=percent_of(state),
        paused=state.pauses.is_paused,
    )
    return _with_request(view, request.value, _format_time(request.time))


def _ended_view(task_id: TaskId, outcome: Outcome, time: str) -> TaskView:
    """Return the view of an ended deliberation."""
    return TaskView(
        task_id,
        outcome.status,
        role=outcome.role,
        seats=tuple(map(_ended_seat_view, outcome.seats)),
        progress=100,
        error=outcome.error_message[:_MAX_TEXT_CHARS],
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
        description=d.description[:_MAX_TEXT_CHARS],
        protocol=d.protocol,
        repository=d.repository.id if d.repository else "",
        base_sha=d.base_sha or "",
        principal=d.principal,
        requested=time,
        follows=own_id(d.follows, d.tenant),
        forked=own_id(d.fork.task_id, d.tenant) if d.fork else TaskId(""),
        agent=d.agent.name if d.agent else "",
    )


def _format_time(time: datetime) -> str:
    return "" if time == UNDATED else time.isoformat(timespec="milliseconds")


def _ended_seat_view(ended: SeatOutcome) -> TaskSeat:
    return TaskSeat(
        ended.seat, ended.status.value, ended.error_code, ended.error_message[:_MAX_TEXT_CHARS]
    )


def seat_view(state: DeliberationState, seat: str, outcome: Outcome | None = None) -> TaskSeat:
    """Return the state of a seat. After the end, the outcome says how each seat ended."""
    ended = {result.seat: result for result in outcome.seats} if outcome else {}
    if seat in ended:
        return _ended_seat_view(ended[seat])
    final_fact = state.finished.get(seat) or state.failures.get(seat)
    if final_fact is not None:
        return _ended_seat_view(final_fact.value)
    if any(fact.value.seat == seat for fact in state.proposals.values()):
        return TaskSeat(seat, "proposed")
    return TaskSeat(seat, "working" if state.started is not None else "waiting")
