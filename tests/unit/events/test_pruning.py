from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moothall.config import BusSettings
from moothall.domain.event import Channel, Event, EventType, new_event
from moothall.events.delivery import BusLimits
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.maintenance import (
    named_commits,
    prune,
    prune_audit,
    prune_blobs,
    prune_documents,
)
from moothall.events.nats.server import embedded_server
from moothall.events.nats.stream_store import BLOBS_STREAM

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

OLD = timedelta(seconds=-60)  # of any age
COMMIT = "c" * 40


@pytest_asyncio.fixture
async def bus(tmp_path: Path) -> AsyncIterator[JetStreamBus]:
    settings = BusSettings()
    async with (
        embedded_server(settings, tmp_path / "bus") as url,
        open_bus(settings, url, limits=BusLimits(blob_bytes=1024)) as opened,
    ):
        yield opened


def proposal_event(task: str, number: int = 1, **data: Any) -> Event:
    return new_event(
        EventType.SEAT_PROPOSED,
        task,
        {"task_id": task, "seat": "agent-dev-001", **data},
        ordinal=str(number),
    )


async def test_audit_messages_are_pruned_after_the_retention_days(bus: JetStreamBus) -> None:
    now = datetime.now(UTC)
    for number, days in enumerate((40, 31, 29, 0)):
        event = new_event(
            EventType.AUDIT_RECORDED,
            "local",
            {"tenant": "local", "writer": "host-1", "record": {}, "mac": "", "records": []},
            ordinal=str(number),
        )
        await bus.publish(replace(event, time=(now - timedelta(days=days)).isoformat()))
    await bus.publish(proposal_event("task-1"))
    assert await prune_audit(bus, None) == 0
    assert await prune_audit(bus, 30) == 2
    assert await prune_audit(bus, 30) == 0
    assert len([1 async for _ in bus.replay((Channel.AUDIT.all,))]) == 2
    assert len([1 async for _ in bus.replay()]) == 1, "the log stays"


async def contents(bus: JetStreamBus) -> list[str]:
    """Subjects of entries and chunks of large values."""
    return list(await bus.subjects(BLOBS_STREAM, "$O.blobs.>"))


async def test_documents_are_pruned_with_the_last_event_of_their_deliberation(
    bus: JetStreamBus,
) -> None:
    for task in ("task-old", "task-new"):
        await bus.publish(proposal_event(task))
        await bus.put(task, {"status": 3})
    assert await prune_documents(bus) == 0
    await prune(bus, 1)
    assert await prune_documents(bus) == 1
    assert await bus.keys() == ["task-new"]
    assert await bus.get("task-new") == {"status": 3}
    assert await bus.get("task-old") is None


async def test_large_values_stay_while_they_are_referenced(bus: JetStreamBus) -> None:
    shared, own_value = "s" * 5000, "o" * 5000
    await bus.publish(proposal_event("task-old", content=shared, more=own_value))
    await bus.publish(proposal_event("task-new", content=shared))
    await bus.put("task-new", {"status": 3, "text": "d" * 5000})
    assert len(await contents(bus)) == 6
    assert await prune_blobs(bus, young=OLD) == 0
    await prune(bus, 1)
    assert await prune_blobs(bus) == 0, "so young a value may wait for its event"
    assert await prune_blobs(bus, young=OLD) == 1
    assert len(await contents(bus)) == 4, "entry and content are gone"
    read = [
        item.event.data["content"] async for item in bus.replay((Channel.RESULTS.of("task-new"),))
    ]
    assert read == [shared]
    assert await bus.get("task-new") == {"status": 3, "text": "d" * 5000}
    await bus.publish(proposal_event("task-again", content=own_value))
    assert [
        item.event.data["content"] async for item in bus.replay((Channel.RESULTS.of("task-again"),))
    ] == [own_value]


async def test_a_value_referenced_by_another_value_is_in_use(bus: JetStreamBus) -> None:
    parts = {f"part-{number}": "m" * 300 for number in range(20)}
    await bus.publish(proposal_event("task-1", proposal={"diff": "x" * 5000, **parts}))
    contents_before = await contents(bus)
    assert await prune_blobs(bus, young=OLD) == 0
    assert await contents(bus) == contents_before
    (read,) = [
        item.event.data["proposal"] async for item in bus.replay((Channel.RESULTS.of("task-1"),))
    ]
    assert read == {"diff": "x" * 5000, **parts}


async def test_commits_named_in_the_log_are_found(bus: JetStreamBus) -> None:
    await bus.publish(proposal_event("task-1", proposal={"commit_sha": COMMIT}))
    await bus.publish(proposal_event("task-2", proposal={"commit_sha": ""}))
    assert await named_commits(bus) == {COMMIT}
