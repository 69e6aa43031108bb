"""An in-memory deliberation service with the interface of the real one, controlled by a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.domain.chat import Writing
from moothall.domain.codec import dump
from moothall.domain.council import DEFAULT_PROTOCOL
from moothall.domain.event import EventType, Recorded, new_event
from moothall.domain.ids import Principal, TaskId, key_of, new_task_id, read_role, seat_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.repository import MergeResult
from moothall.domain.task import (
    DEFAULT_SEATS,
    Deliberation,
    DeliberationRequest,
    Pauses,
    RepositoryRef,
)
from moothall.errors import AlreadyExists, InvalidRequest, NotFound, Permanent

MOST_SEATS = 16


@dataclass
class _Kept:
    request: DeliberationRequest
    deliberation: Deliberation
    outcome: Outcome
    events: list[Recorded] = field(default_factory=list)


@dataclass
class Lands:
    """A `ports.DeliverCommit`: it returns the planned results for one commit after the other, then
    "left". `merges` says which commits were to be merged whatever the policy.
    """

    results: list[MergeResult] = field(default_factory=list)
    deliveries: list[tuple[str, str]] = field(default_factory=list)
    merges: list[bool] = field(default_factory=list)

    async def __call__(
        self, ref: RepositoryRef, sha: str, branch: str, message: str, tenant: str, *, merge: bool
    ) -> MergeResult:
        """Record commit and message."""
        del ref, tenant
        self.deliveries.append((sha, message))
        self.merges.append(merge)
        return self.results.pop(0) if self.results else MergeResult("left", branch, sha)


class MemoryDeliberations:
    """An implementation of `ports.Deliberations` in which the test plays the council with `record`
    and `decide`.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Kept] = {}
        self._changed = asyncio.Condition()
        self._seq = 0
        self.cancelled: dict[str, str] = {}
        self.submitted = asyncio.Event()
        self.watchers = 0
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.waiting = 0
        self.failure: BaseException | None = None
        self.unable: dict[str, Permanent] = {}
        self.refused: dict[str, str] = {}
        self.writes: list[Writing] = []
        self.written = asyncio.Event()

    async def submit(self, request: DeliberationRequest, principal: Principal) -> Deliberation:
        """Store the request once the gate is open. Raises a planted `failure`."""
        if self.failure is not None:
            raise self.failure
        self.waiting += 1
        await self.open_gate.wait()
        self.waiting = 0
        if request.num_agents > MOST_SEATS:
            raise InvalidRequest(f"num_agents is {request.num_agents}; at most {MOST_SEATS}")
        if not request.description.strip():
            raise InvalidRequest("the task is empty")
        task_id = TaskId(request.task_id) or new_task_id()
        key = key_of(task_id, principal.tenant)
        if key in self._entries:
            existing = self._entries[key]
            if existing.request != request or existing.deliberation.principal != principal.name:
                raise AlreadyExists(f"{task_id} is taken")
            return self._entries[key].deliberation
        role = read_role(request.role)
        deliberation = Deliberation(
            task_id=key,
            description=request.description,
            role=role,
            protocol=DEFAULT_PROTOCOL,
            seats=tuple(seat_id(role, n + 1) for n in range(request.num_agents or DEFAULT_SEATS)),
            rounds=request.rounds if request.rounds is not None else 1,
            deadline=datetime.now(UTC) + timedelta(hours=1),
            max_turns=3,
            tenant=principal.tenant,
            principal=principal.name,
            repository=request.repository,
            base_sha="a" * 40 if request.repository else None,
            model=request.model,
        )
        pending = Outcome(
            task_id,
            DeliberationStatus.PENDING,
            tenant=principal.tenant,
            role=role,
            agent_count=len(deliberation.seats),
        )
        self._entries[key] = _Kept(request, deliberation, pending)
        await self.record(key, EventType.DELIBERATION_REQUESTED, dump(deliberation))
        self.submitted.set()
        return deliberation

    async def check(self, request: DeliberationRequest, principal: Principal) -> None:
        """Raise the error planted for the request's role or repository; refuse an empty task."""
        del principal
        if not request.description.strip():
            raise InvalidRequest("the task is empty")
        named = request.repository.id or request.repository.url if request.repository else ""
        if (reason := self.unable.get(request.role) or self.unable.get(named)) is not None:
            raise reason

    async def refuse(
        self, request: DeliberationRequest, reason: Permanent, principal: Principal
    ) -> None:
        """Record the reason why the request cannot start."""
        self.refused.setdefault(key_of(request.task_id, principal.tenant), reason.message)

    async def result(self, task_id: str, principal: Principal) -> Outcome:
        """Return the current outcome."""
        return self._visible(task_id, principal).outcome

    async def wait(self, task_id: str, principal: Principal) -> Outcome:
        """Return the final outcome."""
        entry = self._visible(task_id, principal)
        async with self._changed:
            await self._changed.wait_for(lambda: entry.outcome.status.ended)
        return entry.outcome

    async def watch(
        self, task_id: str, after_seq: int, principal: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield events and end after the decision."""
        entry = self._visible(task_id, principal)
        self.watchers += 1
        delivered: list[Recorded] = []
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: len(entry.events) > len(delivered))
                recorded = entry.events[len(delivered)]
                delivered.append(recorded)
                if recorded.seq > after_seq:
                    yield recorded
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return
        finally:
            self.watchers -= 1

    async def watch_text(self, task_id: str, principal: Principal) -> AsyncGenerator[Writing, None]:
        """Yield planted partial replies."""
        self._visible(task_id, principal)
        for moment in self.writes:
            yield moment
        self.written.set()

    async def steer(self, task_id: str, message: str, principal: Principal, *, key: str) -> None:
        """Record a steering message."""
        self._visible(task_id, principal)
        await self.record(
            task_id,
            EventType.DELIBERATION_STEERED,
            {"task_id": task_id, "message": message, "by": principal.name, "key": key},
        )

    async def pause(self, task_id: str, principal: Principal, *, paused: bool = True) -> bool:
        """Record a pause or its end."""
        entry = self._visible(task_id, principal)
        pauses = Pauses.of(recorded.event for recorded in entry.events)
        if pauses.is_paused is paused:
            return False
        kind = EventType.DELIBERATION_PAUSED if paused else EventType.DELIBERATION_RESUMED
        await self.record(
            task_id, kind, {"task_id": task_id, "number": len(pauses.turns), "by": principal.name}
        )
        return True

    async def cancel(self, task_id: str, reason: str, principal: Principal) -> DeliberationStatus:
        """Cancel it and decide it as cancelled."""
        entry = self._visible(task_id, principal)
        if not entry.outcome.status.ended:
            self.cancelled[task_id] = reason
            await self.record(
                task_id, EventType.DELIBERATION_CANCELLED, {"task_id": task_id, "reason": reason}
            )
            await self.decide(
                replace(entry.outcome, status=DeliberationStatus.CANCELLED, final_state="cancelled")
            )
        return entry.outcome.status

    async def record(self, task_id: str, kind: EventType, data: Mapping[str, Any]) -> int:
        """Record an event and return its seq."""
        entry = self._entries[task_id]
        self._seq += 1
        entry.events.append(
            Recorded(
                self._seq,
                new_event(
                    kind, task_id, data, ordinal=self._seq, time=datetime.now(UTC).isoformat()
                ),
            )
        )
        async with self._changed:
            self._changed.notify_all()
        return self._seq

    async def decide(self, outcome: Outcome) -> None:
        """Record the decision."""
        self._entries[outcome.task_id].outcome = outcome
        await self.record(outcome.task_id, EventType.DELIBERATION_DECIDED, dump(outcome))

    def under_way(self) -> list[Deliberation]:
        """Return the undecided deliberations."""
        return [
            entry.deliberation for entry in self._entries.values() if not entry.outcome.status.ended
        ]

    def task_ids(self) -> list[str]:
        """Return the ids of all deliberations."""
        return list(self._entries)

    def deliberation(self, task_id: str) -> Deliberation:
        """Return the deliberation of a request."""
        return self._entries[task_id].deliberation

    def request(self, task_id: str) -> DeliberationRequest:
        """Return the request of a deliberation."""
        return self._entries[task_id].request

    def _visible(self, task_id: str, principal: Principal) -> _Kept:
        entry = self._entries.get(key_of(task_id, principal.tenant))
        if entry is None or entry.deliberation.tenant != principal.tenant:
            raise NotFound(f"no deliberation {task_id!r}")
        return entry
