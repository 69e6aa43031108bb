"""Batches: simultaneous events in one message, their order on the log, and what a reader
receives.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.collector.collector import Collector
from moothall.domain.event import Channel, Event, EventType, Recorded, new_event
from moothall.errors import BusUnavailable, InvalidRequest, Permanent
from moothall.events import codec, registry
from moothall.events.batching import BatchingWriter, to_records
from moothall.events.envelope import EnvelopeCodec
from moothall.testing.bus import MemoryBlobs, MemoryBus
from moothall.testing.bus_contract import consuming, letters, receive_events, seat
from support.story import START, Remembering, full


def packer(limit: int) -> EnvelopeCodec:
    blobs = MemoryBlobs()
    return EnvelopeCodec(blobs.put, blobs.get, limit)


ABOUT = Channel.RESULTS.of("task-1")


async def messages(bus: Any) -> list[Any]:
    return [json.loads(raw.data) async for raw in bus.raw(registry.EVENTS.name)]


async def test_events_published_together_are_one_message_and_all_arrive(opened: Any) -> None:
    async with opened() as bus:
        for number in range(8):
            waiting = await bus.post(seat(number, turn=number))
        last = await waiting
        read = [r async for r in bus.replay([ABOUT])]
        stored = await messages(bus)
    assert [r.event for r in read] == [
        r.event for r in sorted(read, key=lambda r: int(r.event.data["turn"]))
    ]
    assert len(read) == 8
    assert read[-1].seq == last
    if not isinstance(bus, MemoryBus):  # the in-memory bus records each event separately
        assert [len(message) for message in stored] == [8]
        assert {r.message for r in read} == {last}
        assert {message["specversion"] for message in stored[0]} == {"1.0"}


async def test_without_batching_a_message_is_one_event(opened: Any) -> None:
    async with opened(batch_seconds=0) as bus:
        await asyncio.gather(*[await bus.post(seat(number)) for number in range(3)])
        assert [message["type"] for message in await messages(bus)] == ["moothall.seat.turn"] * 3


async def test_a_publish_flushes_the_batch_of_its_task_and_keeps_the_order(opened: Any) -> None:
    async with opened(batch_seconds=1) as bus:
        other_post = await bus.post(seat(0, "task-2"))
        early = await bus.post(seat(1, turn=1))
        await bus.publish(
            new_event(EventType.DELIBERATION_DECIDED, "task-1", {"task_id": "task-1"})
        )
        late = await bus.post(seat(2, turn=2))
        assert not other_post.done() or isinstance(bus, MemoryBus)
        assert await early < await late
        kinds = [r.event.type async for r in bus.replay([ABOUT, Channel.RESPONSES.of("task-1")])]
        assert kinds == [EventType.SEAT_TURN, EventType.DELIBERATION_DECIDED, EventType.SEAT_TURN]
        await other_post


async def test_a_repeated_message_changes_nothing(opened: Any) -> None:
    async with opened() as bus:
        for _ in range(2):
            answers = [await bus.post(seat(number)) for number in range(3)]
            for answer in answers:
                await answer
        assert len([r async for r in bus.replay([ABOUT])]) == 3


async def test_secret_and_large_values_in_a_batch_are_handled_as_usual(opened: Any) -> None:
    key = "sk-" + "a1B2" * 10
    data_with_secret = {"key": key, "large": "x" * 5000, "looks": {"$blob": "0" * 64, "bytes": 1}}
    async with opened(blob_bytes=2048) as bus:
        for number, data in enumerate(list[dict[str, Any]](({}, data_with_secret, {}))):
            waiting = await bus.post(seat(number, **data))
        await waiting
        stored = [raw.data async for raw in bus.raw(registry.EVENTS.name)]
        _, middle, _ = [r.event.data async for r in bus.replay([ABOUT])]
    assert key.encode() not in b"".join(stored)
    assert sum(map(len, stored)) < 5000
    assert (middle["large"], middle["looks"]) == (
        data_with_secret["large"],
        data_with_secret["looks"],
    )


async def test_an_invalid_event_is_refused_immediately_without_affecting_others(
    opened: Any,
) -> None:
    async with opened() as bus:
        earlier_post = await bus.post(seat(1))
        with pytest.raises(InvalidRequest):
            await bus.post(seat(2, share=float("nan")))
        await earlier_post
        assert len([r async for r in bus.replay([ABOUT])]) == 1


async def test_closing_flushes_all_events(opened: Any) -> None:
    async with opened(batch_seconds=1) as bus:
        answers = [await bus.post(seat(number, f"task-{number}")) for number in range(5)]
    for answer in answers:
        await answer


async def test_an_invalid_event_affects_no_other(opened: Any) -> None:
    queue: asyncio.Queue[Recorded] = asyncio.Queue()
    encoded = [codec.encode(seat(number, turn=number)) for number in range(3)]

    async def handle(recorded: Recorded) -> None:
        if recorded.event.data["turn"] == 1:
            raise Permanent("not this one")
        queue.put_nowait(recorded)

    async with opened() as bus, consuming(bus, "collector", handle):
        data = codec.encode_batch([encoded[0], b'{"specversion":"1.0"}', *encoded[1:]])
        await bus.put_raw("agent.results.task-1", data)
        assert [r.event.data["turn"] for r in await receive_events(queue, 2)] == [0, 2]
        [letter] = await letters(bus, 1)
        assert letter.data == data
        assert "not a CloudEvent" in letter.reason
        assert [r.event.data["turn"] async for r in bus.replay([ABOUT])] == [0, 1, 2]


async def test_glances_see_every_event_and_handlers_the_remaining_ones(opened: Any) -> None:
    glanced: list[tuple[int, str]] = []
    queue: asyncio.Queue[Recorded] = asyncio.Queue()

    def glance(recorded: Recorded) -> bool:
        glanced.append((int(recorded.event.data["turn"]), recorded.extra["place"]))
        return bool(recorded.event.data["turn"] != 2)

    async with opened() as bus:
        answers = [await bus.post(seat(number, turn=number)) for number in range(4)]
        for answer in answers:
            await answer
        consume = asyncio.create_task(bus.consume("collector", queue.put, glance=glance))
        received_events = await receive_events(queue, 1)
        consume.cancel()
    assert [turn for turn, _ in glanced] == [0, 1, 2, 3] or isinstance(bus, MemoryBus)
    assert 2 in [r.event.data["turn"] for r in received_events]
    if not isinstance(bus, MemoryBus):
        assert len({place for _, place in glanced}) == 1


async def test_a_suspended_process_sends_none_of_its_held_events() -> None:
    sent_messages: list[bytes] = []

    async def send(_subject: str, data: bytes, _message_id: str) -> asyncio.Future[int]:
        sent_messages.append(data)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(len(sent_messages))
        return answer

    suspended = BatchingWriter(send, packer(1000), seconds=0.0, max_late_seconds=-1.0, limit=9)
    with pytest.raises(BusUnavailable, match="was suspended"):
        await (await suspended.post("agent.results.task-1", seat(1)))
    assert sent_messages == []
    running = BatchingWriter(send, packer(1000), seconds=0.0, max_late_seconds=60.0, limit=9)
    assert await (await running.post("agent.results.task-1", seat(1))) == 1


@pytest.mark.parametrize("error", [BusUnavailable("not taken"), Permanent("not taken")])
async def test_nothing_is_recorded_after_an_event_that_the_bus_refused(error: Exception) -> None:
    sent_messages: list[bytes] = []

    async def send(_subject: str, data: bytes, _message_id: str) -> asyncio.Future[int]:
        answer = asyncio.get_running_loop().create_future()
        if b"lost" in data:
            asyncio.get_running_loop().call_later(0.01, answer.set_exception, error)
        else:
            sent_messages.append(data)
            answer.set_result(len(sent_messages))
        return answer

    batching = BatchingWriter(send, packer(1000), seconds=0.0, max_late_seconds=60.0, limit=2)
    first = await batching.post("agent.results.task-1", seat(1, thought="lost"))
    with pytest.raises(type(error), match="not taken"):
        await asyncio.gather(
            _wait(first), _wait(await batching.post("agent.responses.task-1", seat(2)))
        )
    other_task = await batching.post("agent.results.task-2", seat(3, "task-2"))
    assert await other_task == 1
    assert len(sent_messages) == 1


async def _wait(receipt: Any) -> int:
    return int(await receipt)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_a_watcher_loses_no_event_wherever_it_stops(sizes: list[int], data: st.DataObject) -> None:
    log: list[Recorded] = []
    for seq, size in enumerate(sizes, 1):
        events: list[Event] = [seat(len(log) + n) for n in range(size)]
        log += to_records(seq, events, {})
    place = data.draw(st.integers(0, len(log) - 1))
    replayed = [r for r in log if r.comes_after(log[place].seq)]
    assert replayed[len(replayed) - len(log[place + 1 :]) :] == log[place + 1 :]
    assert {r.message for r in replayed if r not in log[place + 1 :]} <= {log[place].message}
    assert [r.seq for r in log] == sorted(r.seq for r in log)


async def test_the_decision_is_the_same_for_any_batching_of_events() -> None:
    decisions = []
    for seed in range(12):
        bus, chance = MemoryBus(), random.Random(seed)  # noqa: S311 - no secret
        collector = Collector(bus, Remembering(), tick_seconds=0.005, clock=lambda: START)
        left = [codec.encode(event) for event in full().events]
        running = asyncio.create_task(collector.run())
        while left:
            size = 1 if seed == 0 else chance.randint(1, len(left))
            await bus.put_raw("agent.results.task-a", codec.encode_batch(left[:size]))
            # Another host, which does not know the recorded events, publishes some of them again.
            left = left[max(size - chance.randint(0, 2), 1) if seed else size :]
        async for recorded in bus.follow([Channel.RESPONSES.of("task-a")]):
            decisions.append(dict(recorded.event.data))
            break
        running.cancel()
    assert decisions == decisions[:1] * 12
