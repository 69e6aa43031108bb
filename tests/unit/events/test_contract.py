"""The contract of every bus: the same cases on the in-memory bus and on a real nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from moothall import ports
from moothall.domain.event import Channel, Recorded
from moothall.errors import InvalidRequest
from moothall.events.nats.jetstream import JetStreamBus
from moothall.events.nats.maintenance import prune
from moothall.testing.bus import MemoryBus
from moothall.testing.bus_contract import BusContract, consuming, letters, seat


class TestAnyBus(BusContract):
    """The in-memory bus and NATS."""


async def test_both_buses_satisfy_the_ports(opened: Any) -> None:
    async with opened() as bus:
        for port in (
            bus.publish,
            bus.replay,
            bus.follow,
            bus.consume,
            bus.enqueue,
            bus.signal,
            bus.signals,
            bus.put,
            bus.get,
        ):
            assert callable(port)

    def assign_to_ports(real: JetStreamBus, memory: MemoryBus) -> None:  # checked by mypy
        for implementation in (real, memory):
            _bus: ports.Bus = implementation


async def test_large_values_are_stored_outside_the_message(opened: Any) -> None:
    big, parts = "x" * 60_000 + "ü", ["y" * 600] * 30
    async with opened(blob_bytes=10_000) as bus:
        await bus.publish(seat(1, answer=big, parts=parts))
        await bus.publish(seat(2, answer=big))
        first, second = [r.event.data async for r in bus.replay([Channel.RESULTS.all])]
        assert first["answer"] == second["answer"] == big
        assert first["parts"] == parts
        stored = [raw async for raw in bus.raw("EVENTS")]
        assert all(len(raw.data) < 10_000 for raw in stored)
        await bus.put("task-1", {"diff": big})
        assert await bus.get("task-1") == {"diff": big}


async def test_a_reference_to_a_missing_blob_is_dead_lettered(opened: Any) -> None:
    raw_message = (
        b'{"specversion":"1.0","id":"1","type":"moothall.seat.turn","source":"x","data":{"a":{"$blob":"%s"}}}'
        % (b"a" * 64)
    )

    async def fail_on_event(recorded: Recorded) -> None:
        raise AssertionError(recorded)

    async with opened() as bus, consuming(bus, "collector", fail_on_event):
        await bus.put_raw("agent.results.task-1", raw_message)
        [letter] = await letters(bus, 1)
        assert letter.code == "NOT_FOUND"


async def test_the_log_is_pruned_and_its_state_is_reported(opened: Any) -> None:
    async with opened() as bus:
        for number in range(10):
            await bus.publish(seat(number, turn=number))
        assert (await bus.state("EVENTS")).messages == 10
        assert await prune(bus, 7) == 3
        assert await prune(bus, 10) == 0
        assert await prune(bus, 5) == 2
        assert [r.event.data["turn"] async for r in bus.replay([Channel.RESULTS.all])] == [
            5,
            6,
            7,
            8,
            9,
        ]
        assert await bus.publish(seat(10)) == 11
        assert await prune(bus, 0) == 6
        assert [r async for r in bus.replay([Channel.RESULTS.all])] == []
        assert await bus.publish(seat(11)) == 12
        with pytest.raises(InvalidRequest, match="keep -1"):
            await prune(bus, -1)
