"""The contract of a bus, as test cases: the delivery of messages. They run on the in-memory bus and
on a real NATS server.

Subclass `WorkContract` in a test module with a fixture `opened`: called with bus settings by name
(and `secrets`), it returns an asynchronous context of an empty bus.
"""

from __future__ import annotations

# ruff: noqa: ASYNC110, S101, D102, PLR2004 - tests, with descriptive names
import asyncio
from typing import Any

import pytest

from moothall import ports
from moothall.concurrency import Capacity
from moothall.domain.event import Channel, EventType, Recorded, new_event
from moothall.errors import InvalidRequest, NotFound, Permanent, Temporary
from moothall.events import delivery, raw_store, registry
from moothall.events.codec import encode, encode_batch
from moothall.testing.bus_contract import consuming, letters, receive_events, requested, seat


class _Load:
    """A handler that counts its concurrent calls; `done` is set after `expected` calls."""

    def __init__(self, expected: int) -> None:
        self.done = asyncio.Event()
        self.peak = 0
        self._running = 0
        self._remaining = expected

    async def handle(self, recorded: Recorded) -> None:
        del recorded
        self._running += 1
        self.peak = max(self.peak, self._running)
        await asyncio.sleep(0.02)
        self._running -= 1
        self._remaining -= 1
        if self._remaining == 0:
            self.done.set()


class WorkContract:
    """Cases for receiving, holding and returning messages, and for messages that nobody can
    handle.
    """

    async def test_work_goes_to_exactly_one_consumer(self, opened: Any) -> None:
        handled: list[tuple[str, str]] = []
        all_handled = asyncio.Event()

        def create_handler(name: str) -> ports.Handler:
            async def handle(recorded: Recorded) -> None:
                handled.append((name, recorded.event.subject))
                await asyncio.sleep(0.01)
                if len(handled) == 20:
                    all_handled.set()

            return handle

        async with (
            opened() as bus,
            consuming(bus, "host-dev", create_handler("a")),
            consuming(bus, "host-dev", create_handler("b")),
        ):
            for number in range(20):
                await bus.enqueue(Channel.WORK.of("dev"), requested(f"task-{number}"))
            async with asyncio.timeout(20):
                await all_handled.wait()
            assert sorted(task for _, task in handled) == sorted(f"task-{n}" for n in range(20))
            assert {name for name, _ in handled} == {"a", "b"}

    async def test_a_tenant_with_little_work_waits_only_for_its_turn(self, opened: Any) -> None:
        order: list[str] = []
        all_handled = asyncio.Event()

        async def handle(recorded: Recorded) -> None:
            order.append(recorded.event.subject)
            if len(order) == 1002:
                all_handled.set()

        async with opened() as bus:
            async with asyncio.TaskGroup() as group:  # as fast as a tenant can
                for number in range(1000):
                    event = requested(f"many-{number}", "team-a")
                    group.create_task(bus.enqueue(Channel.WORK.of("dev"), event))
            await bus.enqueue(Channel.WORK.of("dev"), requested("first", "team-b"))
            await bus.enqueue(Channel.WORK.of("dev"), requested("second", "team-b"))
            async with consuming(bus, "host-dev", handle), asyncio.timeout(120):
                await all_handled.wait()
        # Ahead are at most the full queue, and one task of the other tenant for each of its own.
        assert order.index("first") <= delivery.MAX_QUEUED + 1
        assert order.index("second") <= delivery.MAX_QUEUED + 3
        assert len(set(order)) == 1002

    async def test_work_of_another_role_is_not_delivered(self, opened: Any) -> None:
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        async with opened() as bus, consuming(bus, "host-qa", received.put):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-dev"))
            await bus.enqueue(Channel.WORK.of("qa"), requested("task-qa"))
            assert [r.event.subject for r in await receive_events(received, 1)] == ["task-qa"]
            assert received.empty()

    async def test_work_is_redelivered_after_a_temporary_failure(self, opened: Any) -> None:
        received: asyncio.Queue[Recorded] = asyncio.Queue()

        async def handle(recorded: Recorded) -> None:
            received.put_nowait(recorded)
            if received.qsize() < 3:
                raise Temporary("not now")

        async with opened() as bus, consuming(bus, "host-dev", handle):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            async with asyncio.timeout(20):
                while received.qsize() < 3:
                    await asyncio.sleep(0.01)
            assert [r.extra["deliveries"] for r in await receive_events(received, 3)] == [
                "1",
                "2",
                "3",
            ]
            assert [letter async for letter in raw_store.letters(bus)] == []

    async def test_work_that_keeps_failing_becomes_a_dead_letter(self, opened: Any) -> None:
        attempts = 0

        async def handle(recorded: Recorded) -> None:
            nonlocal attempts
            del recorded
            attempts += 1
            raise Temporary("never now", retry_after=0.01)

        async with opened(max_deliver=3) as bus, consuming(bus, "host-dev", handle):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            [letter] = await letters(bus, 1)
            assert letter.deliveries == attempts == 3
            assert "never now" in letter.reason

    async def test_work_that_crashes_its_handlers_becomes_a_dead_letter(self, opened: Any) -> None:
        """A handler with a bug ends its consumer; the message is redelivered, but not forever."""
        calls = 0

        async def crash(recorded: Recorded) -> None:
            nonlocal calls
            del recorded
            calls += 1
            raise ZeroDivisionError

        async with opened(max_deliver=2, ack_wait_seconds=0.3) as bus:
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            for _ in range(2):
                with pytest.raises(ExceptionGroup) as caught:
                    async with asyncio.timeout(20):
                        await bus.consume("host-dev", crash)
                assert caught.group_contains(ZeroDivisionError)
            async with consuming(bus, "host-dev", crash):
                [letter] = await letters(bus, 1)
            assert calls == 2
            assert letter.code == "UNANSWERED"

    async def test_a_dead_letter_can_be_sent_again(self, opened: Any) -> None:
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        broken = True

        async def handle(recorded: Recorded) -> None:
            if broken:
                raise Permanent("broken")
            received.put_nowait(recorded)

        async with opened() as bus, consuming(bus, "host-dev", handle):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            [letter] = await letters(bus, 1)
            broken = False
            await raw_store.replay(bus, letter.seq)
            [redelivered] = await receive_events(received, 1)
            assert redelivered.event.id == requested("task-1").id
            assert [dead async for dead in raw_store.letters(bus)] == []
            with pytest.raises(NotFound):
                await raw_store.replay(bus, letter.seq)

    async def test_a_cancelled_consumer_returns_its_work(self, opened: Any) -> None:
        started = asyncio.Event()
        received: asyncio.Queue[Recorded] = asyncio.Queue()

        async def stuck(recorded: Recorded) -> None:
            del recorded
            started.set()
            await asyncio.Event().wait()

        async with opened(ack_wait_seconds=3600) as bus:
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            async with consuming(bus, "host-dev", stuck), asyncio.timeout(20):
                await started.wait()
            async with consuming(bus, "host-dev", received.put):
                [redelivered] = await receive_events(received, 1)
            assert redelivered.extra["deliveries"] == "2"

    async def test_long_work_is_not_delivered_twice(self, opened: Any) -> None:
        calls = 0
        done = asyncio.Event()

        async def slow(recorded: Recorded) -> None:
            nonlocal calls
            del recorded
            calls += 1
            await asyncio.sleep(0.9)
            done.set()

        async with (
            opened(ack_wait_seconds=0.3) as bus,
            consuming(bus, "host-dev", slow),
            consuming(bus, "host-dev", slow),
        ):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"))
            async with asyncio.timeout(20):
                await done.wait()
            assert calls == 1

    async def test_concurrency_is_bounded(self, opened: Any) -> None:
        load = _Load(expected=30)
        async with opened() as bus, consuming(bus, "collector", load.handle, concurrency=4):
            for number in range(30):
                await bus.publish(seat(number))
            async with asyncio.timeout(20):
                await load.done.wait()
            assert load.peak == 4

    async def test_consumers_that_share_a_capacity_are_bounded_together(self, opened: Any) -> None:
        load, capacity = _Load(expected=20), Capacity(2)
        async with (
            opened() as bus,
            consuming(bus, "host-dev", load.handle, concurrency=capacity),
            consuming(bus, "host-qa", load.handle, concurrency=capacity),
        ):
            for number in range(10):
                for role in ("dev", "qa"):
                    await bus.enqueue(Channel.WORK.of(role), requested(f"task-{role}-{number}"))
            async with asyncio.timeout(60):
                await load.done.wait()
            assert load.peak == 2

    async def test_work_beyond_a_shared_capacity_goes_to_other_consumers(self, opened: Any) -> None:
        hung, handled = asyncio.Event(), asyncio.Queue[str]()

        async def hang(recorded: Recorded) -> None:
            del recorded
            hung.set()
            await asyncio.Event().wait()

        async def handle(recorded: Recorded) -> None:
            handled.put_nowait(recorded.event.subject)

        capacity = Capacity(1)
        async with (
            opened() as bus,
            consuming(bus, "host-dev", hang, concurrency=capacity),
            consuming(bus, "host-qa", hang, concurrency=capacity),
        ):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-dev"))
            async with asyncio.timeout(60):
                await hung.wait()
                async with consuming(bus, "host-qa", handle):
                    await bus.enqueue(Channel.WORK.of("qa"), requested("task-qa"))
                    assert await handled.get() == "task-qa"

    async def test_only_registered_consumers_exist(self, opened: Any) -> None:
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        async with opened() as bus:
            with pytest.raises(
                InvalidRequest, match="no durable consumer 'nobody'; the consumers are collector"
            ):
                await bus.consume("nobody", received.put)

    async def test_only_the_first_delivery_of_work_is_marked_as_fresh(self, opened: Any) -> None:
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        failing = {"task-2", "task-3"}

        async def handle(recorded: Recorded) -> None:
            received.put_nowait(recorded)
            task = recorded.event.subject
            if task in failing:
                failing.discard(task)
                raise Temporary("not now") if task == "task-2" else Permanent("never")

        async def receive_marks(count: int) -> list[tuple[str, bool]]:
            return [
                (recorded.event.subject, "fresh" in recorded.extra)
                for recorded in await receive_events(received, count)
            ]

        async with opened() as bus, consuming(bus, "host-dev", handle):
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-0"))
            assert await receive_marks(1) == [
                ("task-0", False)
            ]  # by now the consumer knows its connection
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-1"), fresh=True)
            assert await receive_marks(1) == [("task-1", True)]
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-2"), fresh=True)
            assert await receive_marks(2) == [("task-2", True), ("task-2", False)]
            await bus.enqueue(Channel.WORK.of("dev"), requested("task-3"), fresh=True)
            assert await receive_marks(1) == [("task-3", True)]
            [letter] = await letters(bus, 1)
            await raw_store.replay(bus, letter.seq)
            assert await receive_marks(1) == [("task-3", False)]

    @pytest.mark.parametrize("about", ["", "story-1", "acme_story-1"])
    async def test_a_story_event_is_read_on_each_of_its_subjects(
        self, opened: Any, about: str
    ) -> None:
        subject = registry.subject(Channel.STORIES.of(about)) if about else registry.STORIES_BARE
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        event = new_event(
            EventType.STORY_CHANGED,
            "story-1",
            {"story_id": "story-1", "title": "Greet"},
            tenant="acme",
        )
        async with opened() as bus, consuming(bus, "planning", received.put):
            await bus.put_raw(subject, encode(event), message_id=event.id)
            [back] = await receive_events(received, 1)
            assert (back.event.id, back.extra["about"]) == (event.id, "acme_story-1")
            assert [r.event.id async for r in bus.replay([Channel.STORIES.of("acme_story-1")])] == [
                event.id
            ]
            assert [r.event.id async for r in bus.replay([Channel.STORIES.all])] == [event.id]
            assert received.empty()
            assert [letter async for letter in raw_store.letters(bus)] == []

    @pytest.mark.parametrize("about", ["", "story-1"])
    async def test_story_events_of_one_message_are_delivered_separately(
        self, opened: Any, about: str
    ) -> None:
        subject = registry.subject(Channel.STORIES.of(about)) if about else registry.STORIES_BARE
        events = [
            new_event(
                EventType.STORY_CHANGED,
                "story-1",
                {"story_id": "story-1", "title": title},
                ordinal=title,
            )
            for title in "abc"
        ]
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        async with opened() as bus, consuming(bus, "planning", received.put):
            await bus.put_raw(subject, encode_batch([encode(event) for event in events]))
            assert [recorded.event.id for recorded in await receive_events(received, 3)] == [
                event.id for event in events
            ]
            recorded = [r async for r in bus.replay([Channel.STORIES.of("story-1")])]
            assert [r.event.id for r in recorded] == [event.id for event in events]
            assert len({r.seq for r in recorded}) == len(events)

    @pytest.mark.parametrize("about", ["", "story-1"])
    async def test_an_invalid_story_event_becomes_a_dead_letter(
        self, opened: Any, about: str
    ) -> None:
        subject = registry.subject(Channel.STORIES.of(about)) if about else registry.STORIES_BARE
        story = {"story_id": "story-2", "title": "Greet"}
        data = [
            b"not JSON",
            b"{}",
            b'{"event_type": "STORY_TRANSITIONED", "case_id": "story-1"}',
            encode(seat(1)),
            encode(new_event(EventType.STORY_CHANGED, "story-1", {"title": "Greet"})),
            encode(new_event(EventType.STORY_CHANGED, "story-1", {"story_id": "a story"})),
            encode(
                new_event(EventType.STORY_CHANGED, "story-1", {"story_id": "story-1"}, tenant="*.>")
            ),
        ]
        data += [encode(new_event(EventType.STORY_CHANGED, "story-2", story))] if about else []
        received: asyncio.Queue[Recorded] = asyncio.Queue()
        async with opened() as bus, consuming(bus, "planning", received.put):
            for message in data:
                await bus.put_raw(subject, message)
            buried = await letters(bus, len(data))
            assert [letter.data for letter in buried] == data
            assert {letter.subject for letter in buried} == {subject}
            assert all(letter.reason for letter in buried)
            assert received.empty()
