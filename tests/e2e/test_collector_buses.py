"""The collector over the in-memory bus and over a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moothall.collector.collector import Collector
from moothall.config import BusSettings
from moothall.domain.event import Channel, EventType, Recorded
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server
from moothall.ports import Bus
from moothall.testing.bus import MemoryBus
from support.story import SEATS, START, Remembering, Story, full

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_server(BusSettings(), tmp_path / "bus"))
        yield await stack.enter_async_context(open_bus(BusSettings(), url))


@asynccontextmanager
async def running(
    bus: Bus, repositories: Remembering, clock: Callable[[], datetime]
) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Collector(bus, repositories, tick_seconds=0.02, clock=clock).run())
        yield
        task.cancel()


async def wait_for_status(bus: Bus, *statuses: str) -> str:
    """Wait until the document of task-a has one of these statuses, and return the document."""
    async with asyncio.timeout(20):
        while True:
            document = await bus.get("task-a")
            if document is not None and document["status"] in statuses:
                return str(document["status"])
            await asyncio.sleep(0.01)


async def final_status(bus: Bus) -> str:
    return await wait_for_status(bus, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")


async def decisions(bus: Bus) -> list[Recorded]:
    recorded = [item async for item in bus.replay((Channel.RESPONSES.all,))]
    return [item for item in recorded if item.event.type is EventType.DELIBERATION_DECIDED]


@pytest.mark.parametrize("killed_after", [1, 9, 20])
async def test_a_killed_and_restarted_collector_decides_once(bus: Bus, killed_after: int) -> None:
    events = full().events
    repositories = Remembering()
    async with running(bus, repositories, lambda: START):
        for event in events[:killed_after]:
            await bus.publish(event)
        await wait_for_status(bus, "PENDING", "IN_PROGRESS", "COMPLETED")
    for event in events[killed_after:]:
        await bus.publish(event)
    async with running(bus, repositories, lambda: START):
        assert await final_status(bus) == "COMPLETED"
    (decided,) = await decisions(bus)
    assert decided.event.data["winner_id"] == SEATS[0]
    assert await bus.get("task-a") == decided.event.data
    assert repositories.branches == {"moothall/task-a": decided.event.data["commit_sha"]}


async def test_a_large_answer_is_delivered_completely(bus: Bus) -> None:
    body = "x" * 400_000
    story = Story().begun().proposed(SEATS[0], body).checked(SEATS[0])
    for seat in SEATS:
        story.finished(seat)
    repositories = Remembering()
    async with running(bus, repositories, lambda: START):
        for event in story.events:
            await bus.publish(event)
        assert await final_status(bus) == "COMPLETED"
    (decided,) = await decisions(bus)
    assert body in decided.event.data["results"][0]["diff"]


async def test_a_restart_ends_a_deliberation_that_only_waits_for_its_deadline(bus: Bus) -> None:
    async with running(bus, Remembering(), lambda: START):
        for event in Story().begun().events:
            await bus.publish(event)
        await wait_for_status(bus, "IN_PROGRESS")
    async with running(bus, Remembering(), lambda: datetime.now(UTC).replace(year=2100)):
        assert await final_status(bus) == "TIMEOUT"
    assert len(await decisions(bus)) == 1
