"""Delivery of messages by every bus: the same cases on the in-memory bus and on a real
nats-server.
"""

from __future__ import annotations

import asyncio
from typing import Any

from moothall.domain.event import Channel, Recorded
from moothall.errors import Permanent
from moothall.testing.bus_contract import consuming, letters, receive_events, seat
from moothall.testing.work_contract import WorkContract


class TestAnyBus(WorkContract):
    """The in-memory bus and NATS."""


async def test_a_poison_message_is_dead_lettered_and_the_consumer_continues(opened: Any) -> None:
    queue: asyncio.Queue[Recorded] = asyncio.Queue()

    async def handle(recorded: Recorded) -> None:
        if recorded.event.subject == "bad":
            raise Permanent("cannot be done\nat all, schade ✗")
        queue.put_nowait(recorded)

    async with opened() as bus, consuming(bus, "collector", handle):
        await bus.put_raw("agent.results.task-1", b"\xff no event")
        await bus.put_raw("agent.results.task-1", b'{"specversion":"1.0"}')
        await bus.publish(seat(1, "bad"))
        await bus.publish(seat(2, "good"))
        assert [r.event.subject for r in await receive_events(queue, 1)] == ["good"]
        first, second, third = await letters(bus, 3)
        assert first.data == b"\xff no event"
        assert first.subject == "agent.results.task-1"
        assert first.code == "INVALID_REQUEST"
        assert "JSON" in first.reason
        assert "id: Field required" in second.reason
        assert third.reason == "cannot be done\nat all, schade ✗"
        assert (third.consumer, third.stream, third.deliveries) == ("collector", "EVENTS", 1)
        # Readers of the log skip malformed messages.
        assert [r.event.subject async for r in bus.replay([Channel.RESULTS.all])] == ["bad", "good"]
