from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moothall.collector.statistics import CouncilHealth, Latencies, Statistics, Totals
from moothall.config import LimitSettings
from moothall.domain.codec import dump
from moothall.domain.council import CouncilConfig
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import LOCAL, Principal, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.testing.bus import MemoryBus

OTHER = Principal("eve", "elsewhere")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


async def publish_ended(
    bus: MemoryBus,
    number: int,
    ms: int,
    *,
    won: bool = True,
    tenant: str = "local",
    ago: float = 0,
    **fields: str,
) -> None:
    status = DeliberationStatus(fields.get("status", "COMPLETED"))
    outcome = Outcome(
        f"task-{number}",
        status,
        tenant=tenant,
        role=fields.get("role", "dev"),
        winner_id="agent-dev-001" if won else "",
        seats=(SeatOutcome("agent-dev-001", SeatStatus.PROPOSED, duration_ms=ms),),
        duration_ms=ms,
        origin=fields.get("origin", ""),
    )
    time = (NOW - timedelta(seconds=ago)).isoformat()
    await bus.publish(
        new_event(
            EventType.DELIBERATION_DECIDED, outcome.task_id, dump(outcome), tenant=tenant, time=time
        )
    )


def running(number: int, role: str = "dev", tenant: str = "local") -> Deliberation:
    seats = (f"agent-{role}-001", f"agent-{role}-002")
    return Deliberation(
        TaskKey(f"task-{number}"),
        "x",
        role,
        "vote",
        seats,
        0,
        NOW,
        1,
        tenant=tenant,
        origin="orchestrate",
    )


async def tally_of(bus: MemoryBus, *under_way: Deliberation) -> Statistics:
    return Statistics(
        bus, CouncilRegistry(bus, LimitSettings()), lambda: under_way, clock=lambda: NOW
    )


async def test_an_empty_log_has_empty_statistics() -> None:
    tally = await tally_of(MemoryBus())
    assert await tally.get_totals(LOCAL) == Totals()
    metrics = await tally.get_metrics(LOCAL)
    assert (metrics.latencies, metrics.councils, metrics.active_agents) == (Latencies(), {}, 0)


async def test_totals_combine_the_log_and_running_deliberations() -> None:
    bus = MemoryBus()
    await publish_ended(bus, 1, 100)
    await publish_ended(bus, 2, 300, origin="orchestrate")
    await publish_ended(bus, 3, 9_000, status="CANCELLED", won=False)
    await publish_ended(bus, 4, 500, tenant="elsewhere")
    tally = await tally_of(bus, running(5, "qa"), running(1), running(6, tenant="elsewhere"))
    assert await tally.get_totals(LOCAL) == Totals(4, 2, 200.0, 1, {"dev": 3, "qa": 1})
    await publish_ended(bus, 7, 500)
    assert (await tally.get_totals(LOCAL)).average_ms == 300.0
    assert await (await tally_of(bus, running(5, "qa"))).get_totals(
        LOCAL
    ) == await tally.get_totals(LOCAL)  # after a restart
    assert (await tally.get_totals(OTHER)).deliberations == 2


async def test_percentiles_use_the_nearest_rank_within_the_time_range() -> None:
    bus = MemoryBus()
    for number in range(1, 101):
        await publish_ended(bus, number, number, ago=60)
    await publish_ended(bus, 200, 100_000, ago=7200)
    tally = await tally_of(bus)
    recent = await tally.get_metrics(LOCAL, 3_600_000)
    assert recent.latencies == Latencies(50.5, 0.0, 50.0, 95.0, 99.0)
    assert recent.response_ms == 50.5
    assert (await tally.get_metrics(LOCAL)).latencies.deliberation_ms > 1000
    assert (await tally.get_metrics(LOCAL, 1)).latencies == Latencies()


async def test_councils_are_busy_idle_or_empty() -> None:
    bus = MemoryBus()
    council_registry = CouncilRegistry(bus, LimitSettings())
    await council_registry.create("dev", 4, CouncilConfig(), LOCAL)
    await council_registry.create("data", 1, CouncilConfig(), LOCAL)
    await council_registry.unregister("data", "agent-data-001", LOCAL)
    await publish_ended(bus, 1, 10)
    await publish_ended(bus, 2, 10, won=False)
    await publish_ended(bus, 3, 10, won=False, status="CANCELLED")
    await publish_ended(bus, 4, 10, role="qa")
    metrics = await (await tally_of(bus, running(9))).get_metrics(LOCAL)
    assert metrics.councils == {
        "council-data": CouncilHealth("empty", 0, 0, 0.0),
        "council-dev": CouncilHealth("busy", 2, 2, 0.5),
        "council-qa": CouncilHealth("idle", 3, 0, 1.0),
    }
    assert (metrics.agents_by_role, metrics.active_agents) == ({"data": 0, "dev": 4, "qa": 3}, 2)


@pytest.mark.parametrize(
    "data",
    [
        {"task_id": "t"},
        {"task_id": "t", "seats": [1, {"duration_ms": "x"}], "duration_ms": -5, "role": 7},
    ],
)
async def test_a_malformed_decision_does_not_break_statistics(data: dict[str, object]) -> None:
    bus = MemoryBus()
    await bus.publish(new_event(EventType.DELIBERATION_DECIDED, "t", data, time="yesterday"))
    assert (await (await tally_of(bus)).get_totals(LOCAL)).deliberations == 1
