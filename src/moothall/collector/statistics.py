"""Statistics of decided deliberations, read from the log on request.

Deliberations record no counters. Each request reads the decisions since the last one, so the
figures are those of the log, also right after a restart. They lack decisions that were pruned from
the log.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cachetools import FIFOCache, LRUCache

from moothall.domain.budget import Usage
from moothall.domain.council import Council
from moothall.domain.event import Channel, Event, EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import Principal, TaskKey
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import DEFAULT_SEATS, Deliberation
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.ports import Log

TOPICS = (Channel.RESPONSES.all,)
ORCHESTRATE = "orchestrate"
_MAX_DECISIONS = 100_000
_MAX_REQUESTS = 10_000
_TEXT_CHARS = 100


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The decision of a run, reduced to what the figures need.

    ended_at_ms: since the epoch.
    seat_ms: the durations of its seats.
    seat_usage: what each seat used. `usage` also has what the council itself used.
    """

    task_key: TaskKey
    ended_at_ms: float
    role: str
    orchestrated: bool
    won: bool
    cancelled: bool
    duration_ms: int
    seat_ms: tuple[int, ...]
    story_id: str
    level: str
    usage: Usage
    seat_usage: Mapping[str, Usage]


class Statistics:
    """Statistics of deliberations.

    active_deliberations: returns the active deliberations.

    Memory: a few numbers of each of the last 100,000 decisions.
    """

    def __init__(
        self,
        log: Log,
        councils: CouncilRegistry,
        active_deliberations: Callable[[], Iterable[Deliberation]],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._log = log
        self._councils = councils
        self._active_deliberations = active_deliberations
        self._clock = clock
        self._decisions: FIFOCache[tuple[str, TaskKey], EndedRun] = FIFOCache(_MAX_DECISIONS)
        self._requests: LRUCache[TaskKey, tuple[str, Mapping[str, str]]] = LRUCache(_MAX_REQUESTS)
        self._seq = 0
        self._reading = asyncio.Lock()

    async def get_totals(self, principal: Principal) -> Totals:
        """Return the totals of a tenant."""
        decisions, active = await self._read_decisions(principal)
        roles = Counter(decision.role for decision in decisions)
        roles.update(deliberation.role for deliberation in active)
        return Totals(
            deliberations=len(decisions) + len(active),
            orchestrations=sum(decision.orchestrated for decision in decisions)
            + sum(deliberation.origin == ORCHESTRATE for deliberation in active),
            average_ms=_mean(
                [decision.duration_ms for decision in decisions if not decision.cancelled]
            ),
            active_councils=len({deliberation.role for deliberation in active}),
            by_role=dict(sorted(roles.items())),
        )

    async def get_metrics(self, principal: Principal, range_ms: int = 0) -> Metrics:
        """Return the figures of decisions within the last `range_ms`, and of active deliberations.

        range_ms: 0 for all decisions.
        """
        decisions, active = await self._read_decisions(principal)
        earliest_ms = self._clock().timestamp() * 1000 - range_ms if range_ms else -math.inf
        recent = [decision for decision in decisions if decision.ended_at_ms >= earliest_ms]
        busy = {(deliberation.role, seat) for deliberation in active for seat in deliberation.seats}
        registered = {council.role: council for council in await self._councils.list(principal)}
        roles = sorted(
            {
                *registered,
                *(decision.role for decision in recent),
                *(deliberation.role for deliberation in active),
            }
        )
        agent_counts = {role: _agent_count(registered.get(role)) for role in roles}
        return Metrics(
            latencies=_measure_latencies(
                [decision for decision in recent if not decision.cancelled]
            ),
            agents_by_role=agent_counts,
            active_agents=len(busy),
            response_ms=_mean([duration for decision in recent for duration in decision.seat_ms]),
            councils={
                Council(role).id: _council_health(
                    agent_counts[role],
                    sum(busy_role == role for busy_role, _ in busy),
                    [
                        decision.won
                        for decision in recent
                        if decision.role == role and not decision.cancelled
                    ],
                )
                for role in roles
            },
        )

    async def list_runs(self, principal: Principal, since: datetime) -> Sequence[EndedRun]:
        """Return the runs of a tenant that have ended since a point in time, oldest first."""
        decisions, _ = await self._read_decisions(principal)
        since_ms = since.timestamp() * 1000
        recent = [decision for decision in decisions if decision.ended_at_ms >= since_ms]
        return sorted(recent, key=lambda decision: decision.ended_at_ms)

    async def usage_by_model(self, run: EndedRun) -> Mapping[str, Usage]:
        """Return what a run used, by the name of the model in the settings; '' is the default
        model, which is also assumed if the request was pruned from the log.
        """
        if (names := self._requests.get(run.task_key)) is None:
            names = self._requests[run.task_key] = await self._read_models(run.task_key)
        model, seat_models = names
        usage: dict[str, Usage] = {}
        for seat, seat_usage in run.seat_usage.items():
            name = seat_models.get(seat, model)
            usage[name] = usage.get(name, Usage()) + seat_usage
        council = _subtract_usage(run.usage, sum(run.seat_usage.values(), start=Usage()))
        return usage | {model: usage.get(model, Usage()) + council}

    async def _read_models(self, task_key: TaskKey) -> tuple[str, Mapping[str, str]]:
        """Return the model of a council, and those of seats with another one."""
        recorded = await self._log.first(Channel.RESULTS.of(task_key))
        data = recorded.event.data if recorded else {}
        seat_models = data.get("seat_models")
        return (
            str(data.get("model") or "")[:_TEXT_CHARS],
            {str(seat): str(name) for seat, name in seat_models.items()}
            if isinstance(seat_models, Mapping)
            else {},
        )

    def find_busy_agents(self, principal: Principal) -> Mapping[str, frozenset[str]]:
        """Return by role the agents that have a seat now."""
        agents_by_role: dict[str, frozenset[str]] = {}
        for deliberation in self._active_deliberations():
            if deliberation.tenant == principal.tenant:
                agents_by_role[deliberation.role] = agents_by_role.get(
                    deliberation.role, frozenset()
                ) | set(deliberation.seats)
        return agents_by_role

    async def _read_decisions(
        self, principal: Principal
    ) -> tuple[list[EndedRun], list[Deliberation]]:
        async with self._reading:  # concurrent readers would read the same events twice
            async for recorded in self._log.replay(TOPICS, self._seq):
                self._seq = recorded.seq
                self._add_decision(recorded.event, recorded.extra.get("time", ""))
        ended = [
            item for (tenant, _), item in self._decisions.items() if tenant == principal.tenant
        ]
        running = [
            item
            for item in self._active_deliberations()
            if item.tenant == principal.tenant
            and (item.tenant, item.task_id) not in self._decisions
        ]
        return ended, running

    def _add_decision(self, event: Event, recorded_at: str) -> None:
        if event.type is not EventType.DELIBERATION_DECIDED:
            return
        key = (event.tenant, TaskKey(str(event.data.get("task_id"))))
        if key not in self._decisions:
            self._decisions[key] = _parse_decision(key[1], event, recorded_at)


def _parse_decision(task_key: TaskKey, event: Event, recorded_at: str) -> EndedRun:
    """Return a decision. Malformed fields count as zero or empty, but the decision counts."""
    data = event.data
    seats = data.get("seats")
    seats = [seat for seat in seats if isinstance(seat, Mapping)] if isinstance(seats, list) else []
    durations = [_positive_int(seat.get("duration_ms")) for seat in seats]
    status = data.get("status")
    level = data.get("evidence_level")
    return EndedRun(
        task_key=task_key,
        ended_at_ms=_epoch_ms(event.time or recorded_at),
        role=str(data.get("role") or "")[:20],
        orchestrated=data.get("origin") == ORCHESTRATE,
        won=status == DeliberationStatus.COMPLETED.value and bool(data.get("winner_id")),
        cancelled=status == DeliberationStatus.CANCELLED.value,
        duration_ms=_positive_int(data.get("duration_ms")),
        seat_ms=tuple(duration for duration in durations if duration),
        story_id=str(data.get("story_id") or "")[:_TEXT_CHARS],
        level=EvidenceLevel.PROVEN.value if data.get("proven") else str(level or "")[:_TEXT_CHARS],
        usage=_parse_usage(data.get("usage")),
        seat_usage={
            str(seat.get("seat") or "")[:_TEXT_CHARS]: _parse_usage(seat.get("usage"))
            for seat in seats
        },
    )


def _parse_usage(data: Any) -> Usage:
    if not isinstance(data, Mapping):
        return Usage()
    cost = data.get("cost_usd")
    return Usage(
        prompt_tokens=_positive_int(data.get("prompt_tokens")),
        completion_tokens=_positive_int(data.get("completion_tokens")),
        calls=_positive_int(data.get("calls")),
        cost_usd=float(cost) if isinstance(cost, int | float) and 0 < cost < math.inf else 0.0,
    )


def _subtract_usage(total: Usage, share: Usage) -> Usage:
    """Return the usage of the whole without a share, at least zero."""
    return Usage(
        prompt_tokens=max(0, total.prompt_tokens - share.prompt_tokens),
        completion_tokens=max(0, total.completion_tokens - share.completion_tokens),
        calls=max(0, total.calls - share.calls),
        cost_usd=max(0.0, total.cost_usd - share.cost_usd),
    )


def _positive_int(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 2**53 else 0


def _epoch_ms(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp() * 1000
    except (ValueError, OverflowError):
        return 0.0


def _agent_count(council: Council | None) -> int:
    return DEFAULT_SEATS if council is None else len(council.agents)


def _council_health(agents: int, busy: int, won: Sequence[bool]) -> CouncilHealth:
    status = "busy" if busy else "idle" if agents else "empty"
    return CouncilHealth(status, max(0, agents - busy), busy, sum(won) / len(won) if won else 0.0)


def _measure_latencies(decisions: Sequence[EndedRun]) -> Latencies:
    durations = sorted(decision.duration_ms for decision in decisions)
    return Latencies(
        deliberation_ms=_mean(durations),
        orchestration_ms=_mean(
            [decision.duration_ms for decision in decisions if decision.orchestrated]
        ),
        p50_ms=_percentile(durations, 50),
        p95_ms=_percentile(durations, 95),
        p99_ms=_percentile(durations, 99),
    )


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _percentile(ordered: Sequence[int], percent: int) -> float:
    """Return a percentile by nearest rank."""
    return float(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]) if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a tenant, as far as the log reaches. Times in milliseconds.

    by_role: the number of deliberations.
    """

    deliberations: int = 0
    orchestrations: int = 0
    average_ms: float = 0.0
    active_councils: int = 0
    by_role: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The time from a request to its decision in milliseconds; percentiles by nearest rank, 0
    without decisions.
    """

    deliberation_ms: float = 0.0
    orchestration_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CouncilHealth:
    """The current state of a council.

    status: busy, idle, or empty if it has no agents.
    success_rate: the share of decisions with a winner, 0..1.
    """

    status: str
    available: int
    busy: int
    success_rate: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a tenant within a time range.

    active_agents: the agents that have a seat now.
    councils: by council id.
    """

    latencies: Latencies
    agents_by_role: Mapping[str, int]
    active_agents: int
    response_ms: float
    councils: Mapping[str, CouncilHealth]
