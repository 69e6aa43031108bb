"""A cancelled call ends at any time, even at the moment when the server's answer arrives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from moothall.config import BusSettings
from moothall.domain.event import Channel, EventType, Recorded, new_event
from moothall.events.delivery import BusLimits
from moothall.events.nats.jetstream import JetStreamBus, open_bus

Act = Callable[[JetStreamBus], Awaitable[object]]


async def ignore(_: Recorded) -> None: ...


async def follow(bus: JetStreamBus) -> None:
    async with aclosing(bus.follow([Channel.RESULTS.of("task-1")])) as events:
        async for _ in events:
            pass


async def replay(bus: JetStreamBus) -> None:
    async with aclosing(bus.replay([Channel.RESULTS.of("task-1")])) as events:
        async for _ in events:
            pass


async def listen(bus: JetStreamBus) -> None:
    async with aclosing(bus.signals(Channel.CANCEL.all)) as signals:
        async for _ in signals:
            pass


ACTS: dict[str, Act] = {
    "consume": lambda bus: bus.consume("host-dev", ignore),
    "follow": follow,
    "listen": listen,
    "replay": replay,
    "publish": lambda bus: bus.publish(
        new_event(EventType.SEAT_TURN, "task-1", {"task_id": "task-1"})
    ),
    "signal": lambda bus: bus.signal(Channel.CANCEL.of("task-1"), {}),
    "put a document": lambda bus: bus.put("key", {"large": "x" * 5000}),
    "get a document": lambda bus: bus.get("key"),
    "keys": lambda bus: bus.keys(),
    "state": lambda bus: bus.state("EVENTS"),
    "purge": lambda bus: bus.purge("EVENTS", 1),
}


async def after_answers(bus: JetStreamBus, answers: int, turns: int) -> None:
    """Return this many turns of the loop after this many messages have arrived, or if no more
    arrive.
    """
    until = bus._client.stats["in_msgs"] + answers
    for _ in range(1000):
        if bus._client.stats["in_msgs"] >= until:
            break
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.mark.e2e
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
async def test_a_cancellation_is_never_lost(act: Act, server: str) -> None:
    failed = False

    async def for_ever(bus: JetStreamBus) -> None:
        while not failed:
            await act(bus)

    async with (
        open_bus(BusSettings(), server, limits=BusLimits(blob_bytes=1024)) as bus,
        asyncio.TaskGroup() as group,
    ):
        await bus.put("key", {"large": "x" * 5000})
        tasks_before = asyncio.all_tasks()
        for answers, turns in itertools.product(range(5), range(8)):
            task = group.create_task(for_ever(bus))
            await after_answers(bus, answers, turns)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            left = asyncio.all_tasks() - tasks_before
            failed = bool(left)
            for leftover in left:
                # a task that only waits for the next message obeys a second cancellation
                leftover.cancel()
            assert not left
            await asyncio.sleep(0.005)  # for answers to cancelled calls
