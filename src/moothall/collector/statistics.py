"""The tally: figures of what was decided, read from the log when somebody asks.

Nothing is counted on the way of a deliberation. Each question reads the decisions that came since
the last one,
so the figures are those of the log, right after a restart too; what the log was pruned of is not in
them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cachetools import FIFOCache

from moothall.domain.council import Council
from moothall.domain.event import Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import DEFAULT_SEATS, Deliberation
from moothall.domain.topic import Channel
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.ports import Log

TOPICS = (Channel.RESPONSES.all,)
ORCHESTRATE = "orchestrate"
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class _Ended:
    """A decision, as small as it can be. Times in milliseconds, `at` since the epoch."""

    at: float
    role: str
    orchestrated: bool
    won: bool
    cancelled: bool
    took: int
    seats: tuple[int, ...]


class Statistics:
    """Counts of what was done. `under_way` gives the deliberations that are not decided yet.

    Memory: a few numbers of each of the last hundred thousand decisions.
    """

    def __init__(
        self,
        log: Log,
        councils: CouncilRegistry,
        under_way: Callable[[], Iterable[Deliberation]],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._log = log
        self._councils = councils
        self._under_way = under_way
        self._clock = clock
        self._ended: FIFOCache[tuple[str, str], _Ended] = FIFOCache(_REMEMBERED)
        self._seq = 0
        self._reading = asyncio.Lock()

    async def totals(self, who: Principal) -> Totals:
        """Return how much there was."""
        ended, running = await self._of(who)
        roles = Counter([item.role for item in ended]) + Counter([item.role for item in running])
        return Totals(
            deliberations=len(ended) + len(running),
            orchestrations=sum(i.orchestrated for i in ended)
            + sum(d.origin == ORCHESTRATE for d in running),
            average_ms=_mean([item.took for item in ended if not item.cancelled]),
            active_councils=len({item.role for item in running}),
            by_role=dict(sorted(roles.items())),
        )

    async def metrics(self, who: Principal, range_ms: int = 0) -> Metrics:
        """Return the figures of what ended within the last `range_ms` (0: ever), and of what is
        under way now.
        """
        ended, running = await self._of(who)
        since = self._clock().timestamp() * 1000 - range_ms if range_ms else -math.inf
        recent = [item for item in ended if item.at >= since]
        busy = {(item.role, seat) for item in running for seat in item.seats}
        made = {council.role: council for council in await self._councils.list(who)}
        roles = sorted({*made, *(item.role for item in recent), *(item.role for item in running)})
        seat_state = {role: _agents(made.get(role)) for role in roles}
        return Metrics(
            latencies=_latencies([item for item in recent if not item.cancelled]),
            agents_by_role=seat_state,
            active_agents=len(busy),
            response_ms=_mean([took for item in recent for took in item.seats]),
            councils={
                Council(role).id: _health(
                    seat_state[role],
                    sum(of == role for of, _ in busy),
                    [item.won for item in recent if item.role == role and not item.cancelled],
                )
                for role in roles
            },
        )

    def busy(self, who: Principal) -> Mapping[str, frozenset[str]]:
        """Return by role the agents that have a seat now."""
        found: dict[str, frozenset[str]] = {}
        for item in self._under_way():
            if item.tenant == who.tenant:
                found[item.role] = found.get(item.role, frozenset()) | set(item.seats)
        return found

    async def _of(self, who: Principal) -> tuple[list[_Ended], list[Deliberation]]:
        async with self._reading:  # two readers would read the same twice
            async for recorded in self._log.replay(TOPICS, self._seq):
                self._seq = recorded.seq
                self._note(recorded.event, recorded.extra.get("time", ""))
        ended = [item for (tenant, _), item in self._ended.items() if tenant == who.tenant]
        running = [
            item
            for item in self._under_way()
            if item.tenant == who.tenant and (item.tenant, item.task_id) not in self._ended
        ]
        return ended, running

    def _note(self, event: Event, recorded_at: str) -> None:
        if event.type is not EventType.DELIBERATION_DECIDED:
            return
        key = (event.tenant, str(event.data.get("task_id")))
        if key not in self._ended:
            self._ended[key] = _read(event, recorded_at)


def _read(event: Event, recorded_at: str) -> _Ended:
    """What is malformed counts as nothing: a decision is a decision."""
    data = event.data
    seats = data.get("seats")
    took = (
        [_whole(seat.get("duration_ms")) for seat in seats if isinstance(seat, Mapping)]
        if isinstance(seats, list)
        else []
    )
    status = data.get("status")
    return _Ended(
        at=_at(event.time or recorded_at),
        role=str(data.get("role") or "")[:20],
        orchestrated=data.get("origin") == ORCHESTRATE,
        won=status == DeliberationStatus.COMPLETED.value and bool(data.get("winner_id")),
        cancelled=status == DeliberationStatus.CANCELLED.value,
        took=_whole(data.get("duration_ms")),
        seats=tuple(number for number in took if number),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 2**53 else 0


def _at(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp() * 1000
    except (ValueError, OverflowError):
        return 0.0


def _agents(council: Council | None) -> int:
    return DEFAULT_SEATS if council is None else len(council.agents)


def _health(agents: int, busy: int, won: Sequence[bool]) -> CouncilHealth:
    status = "busy" if busy else "idle" if agents else "empty"
    return CouncilHealth(status, max(0, agents - busy), busy, sum(won) / len(won) if won else 0.0)


def _latencies(ended: Sequence[_Ended]) -> Latencies:
    took = sorted(item.took for item in ended)
    return Latencies(
        deliberation_ms=_mean(took),
        orchestration_ms=_mean([item.took for item in ended if item.orchestrated]),
        p50_ms=_percentile(took, 50),
        p95_ms=_percentile(took, 95),
        p99_ms=_percentile(took, 99),
    )


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _percentile(ordered: Sequence[int], percent: int) -> float:
    """By nearest rank."""
    return float(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]) if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a tenant, as far as the log reaches. Times in milliseconds. `by_role` counts
    deliberations.
    """

    deliberations: int = 0
    orchestrations: int = 0
    average_ms: float = 0.0
    active_councils: int = 0
    by_role: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds from a request to its decision; percentiles by nearest rank. 0 where nothing
    ended.
    """

    deliberation_ms: float = 0.0
    orchestration_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CouncilHealth:
    """A council now. `status` is busy, idle, or empty where nobody sits; `success_rate` is winners
    among what ended, 0..1.
    """

    status: str
    available: int
    busy: int
    success_rate: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of a tenant, within a time range. `councils` by council id; an agent is active while it has a
    seat.
    """

    latencies: Latencies
    agents_by_role: Mapping[str, int]
    active_agents: int
    response_ms: float
    councils: Mapping[str, CouncilHealth]
