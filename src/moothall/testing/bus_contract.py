"""The contract of a bus, as test cases: the log, documents, signals and requests. They run on the
in-memory bus and on a real NATS server.

Subclass `BusContract` in a test module with a fixture `opened`: called with bus settings by name
(and `secrets`), it returns an asynchronous context of an empty bus.
"""

from __future__ import annotations

# ruff: noqa: S101, D102, PLR2004 - tests, with descriptive names
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from moothall import ports
from moothall.concurrency import run_in_background
from moothall.domain.event import Channel, Event, EventType, Recorded, new_event
from moothall.domain.ids import LOCAL_TENANT
from moothall.domain.status import FLEET
from moothall.errors import AlreadyExists, BusUnavailable, InvalidRequest
from moothall.events import raw_store


def seat(number: int, task: str = "task-1", **data: Any) -> Event:
    """Return the `number`-th turn of a seat."""
    return new_event(
        EventType.SEAT_TURN,
        task,
        {"task_id": task, "seat": "agent-dev-001", **data},
        ordinal=number,
    )


def requested(task: str, tenant: str = LOCAL_TENANT) -> Event:
    """Return a request for a deliberation."""
    data = {"task_id": task}
    return new_event(EventType.DELIBERATION_REQUESTED, task, data, tenant=tenant)


@asynccontextmanager
async def consuming(
    bus: Any, durable: str, handler: ports.Handler, **options: Any
) -> AsyncIterator[None]:
    """Consume messages of a durable consumer, and dispatch work, until the context ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(work)
            for work in (bus.consume(durable, handler, **options), bus.dispatch())
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def receive_events(queue: asyncio.Queue[Recorded], count: int) -> list[Recorded]:
    """Wait for so many events, and return them."""
    async with asyncio.timeout(20):
        return [await queue.get() for _ in range(count)]


async def letters(bus: Any, count: int) -> list[raw_store.DeadLetter]:
    """Wait for so many dead letters, and return them."""
    async with asyncio.timeout(20):
        while True:
            dead = [letter async for letter in raw_store.letters(bus)]
            if len(dead) >= count:
                return dead
            await asyncio.sleep(0.02)


class BusContract:
    """Cases for the log, documents, signals and requests."""

    async def test_a_repeated_publish_changes_nothing(self, opened: Any) -> None:
        async with opened() as bus:
            first = await bus.publish(seat(1))
            assert await bus.publish(seat(2)) == first + 1
            assert await bus.publish(seat(1)) == first
            assert [r.seq async for r in bus.replay([Channel.RESULTS.of("task-1")])] == [
                first,
                first + 1,
            ]

    async def test_replay_is_ordered_filtered_and_ends(self, opened: Any) -> None:
        async with opened() as bus:
            for number in range(700):
                await bus.publish(seat(number, f"task-{number % 2}", turn=number))
            everything = [r async for r in bus.replay([Channel.RESULTS.all, Channel.RESPONSES.all])]
            assert [r.event.data["turn"] for r in everything] == list(range(700))
            assert [r.seq for r in everything] == sorted(r.seq for r in everything)
            odd = [
                r.event.data["turn"]
                async for r in bus.replay(
                    [Channel.RESULTS.of("task-1")], after_seq=everything[599].seq
                )
            ]
            assert odd == list(range(601, 700, 2))
            await bus.publish(
                new_event(
                    EventType.STORY_COMMENTED,
                    "story-1",
                    {"story_id": "story-1", "comment": "between"},
                )
            )
            later_records = [
                r async for r in bus.replay([Channel.RESULTS.all], after_seq=everything[99].seq)
            ]
            assert [(r.seq, r.event) for r in later_records] == [
                (r.seq, r.event) for r in everything[100:]
            ]
            assert (await bus.first(Channel.RESULTS.all)).event == everything[0].event
            assert await bus.first(Channel.WORDS.all) is None
            assert [r async for r in bus.replay([Channel.RESULTS.of("task-9")])] == []
            assert [r async for r in bus.replay([Channel.RESULTS.all], after_seq=700)] == []

    async def test_an_event_is_read_as_it_was_published(self, opened: Any) -> None:
        event = new_event(
            EventType.DECISION_MADE,
            "story-1",
            {"story_id": "story-1", "comment": "schön ✓", "n": [1, 2.5, None, True, {"deep": {}}]},
            cause="abc",
            correlationid="story-1",
            tenant="acme",
            traceparent="00-1-2-01",
            source="web",
            time="2026-01-02T03:04:05Z",
        )
        async with opened() as bus:
            await bus.publish(event)
            [back] = [r async for r in bus.replay([Channel.STORIES.of("acme_story-1")])]
            assert back.event == event
            assert back.extra["about"] == "acme_story-1"
            assert [r async for r in bus.replay([Channel.STORIES.of("story-1")])] == []

    async def test_many_publishers_at_once(self, opened: Any) -> None:
        async with opened() as bus:
            seqs = await asyncio.gather(*(bus.publish(seat(n)) for n in range(1000)))
            assert sorted(seqs) == list(range(1, 1001))

    async def test_posted_events_are_recorded_in_order(self, opened: Any) -> None:
        async with opened(in_flight=16) as bus:
            answers = [await bus.post(seat(n, turn=n)) for n in range(500)]
            seqs = [await answer for answer in answers]
            assert seqs == sorted(seqs)
            assert [
                r.event.data["turn"] async for r in bus.replay([Channel.RESULTS.of("task-1")])
            ] == list(range(500))

    async def test_only_one_event_is_the_first_of_its_subject(self, opened: Any) -> None:
        async with opened() as bus:
            assert await bus.first(Channel.RESULTS.of("task-1")) is None
            results = await asyncio.gather(
                *(bus.create(seat(n, turn=n)) for n in range(5)), return_exceptions=True
            )
            assert [type(item) for item in results].count(AlreadyExists) == 4
            (seq,) = [item for item in results if isinstance(item, int)]
            await bus.publish(seat(9))
            first = await bus.first(Channel.RESULTS.of("task-1"))
            assert first is not None
            assert first.seq == seq
            with pytest.raises(AlreadyExists):
                await bus.create(first.event)
            await bus.create(seat(1, "task-2"))

    async def test_only_one_event_directly_follows_another_of_its_subject(
        self, opened: Any
    ) -> None:
        async with opened() as bus:
            await bus.publish(seat(0, "task-2"))
            last = await bus.create(seat(0))
            await bus.publish(seat(1, "task-2"))
            results = await asyncio.gather(
                *(bus.create(seat(n, turn=n), last) for n in range(1, 5)), return_exceptions=True
            )
            assert [type(item) for item in results].count(AlreadyExists) == 3
            (seq,) = [item for item in results if isinstance(item, int)]
            with pytest.raises(AlreadyExists):
                await bus.create(seat(9), last)
            assert await bus.create(seat(10), seq) > seq

    async def test_a_deliberation_is_replayed_across_its_subjects(self, opened: Any) -> None:
        async with opened() as bus:
            for number in range(600):
                await bus.post(seat(number, f"task-{number % 2}", turn=number))
            decided = new_event(EventType.DELIBERATION_DECIDED, "task-1", {"task_id": "task-1"})
            await bus.publish(decided)
            await bus.publish(seat(600, "task-1", turn=600))
            topics = [Channel.RESULTS.of("task-1"), Channel.RESPONSES.of("task-1")]
            records = [r async for r in bus.replay(topics)]
            assert [r.event.data.get("turn") for r in records] == [*range(1, 600, 2), None, 600]
            assert [r.seq for r in records] == sorted(r.seq for r in records)
            for index in (
                100,
                200,
                299,
            ):  # events of one message are replayed together, so none is lost
                replayed = [r.event.id async for r in bus.replay(topics, records[index].seq)]
                expected = [r.event.id for r in records[index + 1 :]]
                assert replayed[len(replayed) - len(expected) :] == expected
                assert (
                    not replayed[: len(replayed) - len(expected)]
                    or records[index].message > records[index].seq
                )
                assert [
                    r.event.id for r in records if r.comes_after(records[index].seq)
                ] == replayed

    async def test_many_waiters_each_get_their_own_event(self, opened: Any) -> None:
        def decided(number: int) -> Event:
            return new_event(
                EventType.DELIBERATION_DECIDED, f"task-{number}", {"task_id": f"task-{number}"}
            )

        async def wait_for(bus: Any, number: int) -> str:
            async with aclosing(bus.follow([Channel.RESPONSES.of(f"task-{number}")])) as events:
                async for recorded in events:
                    return str(recorded.event.data["task_id"])
            return "nothing"

        async with opened() as bus:
            await bus.publish(decided(0))
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                waiting = [group.create_task(wait_for(bus, number % 50)) for number in range(100)]
                for number in range(50):
                    await bus.publish(decided(number))
            assert [task.result() for task in waiting] == [
                f"task-{number % 50}" for number in range(100)
            ]

    async def test_follow_yields_past_and_new_events(self, opened: Any) -> None:
        async with opened() as bus:
            await bus.publish(seat(0, turn=0))
            received: asyncio.Queue[Recorded] = asyncio.Queue()

            async def watch() -> None:
                async with aclosing(bus.follow([Channel.RESULTS.of("task-1")])) as events:
                    async for recorded in events:
                        received.put_nowait(recorded)

            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(watch())
                assert [r.event.data["turn"] for r in await receive_events(received, 1)] == [0]
                await bus.publish(seat(1, "task-2", turn=1))
                await bus.publish(seat(2, turn=2))
                assert [r.event.data["turn"] for r in await receive_events(received, 1)] == [2]
                watcher.cancel()

    async def test_data_that_looks_like_a_reference_stays_data(self, opened: Any) -> None:
        forged: Mapping[str, Any] = {"$blob": "0" * 64, "bytes": 3, "more": {"$data": {"$blob": 1}}}
        async with opened() as bus:
            await bus.publish(seat(1, output=forged))
            [back] = [r.event.data["output"] async for r in bus.replay([Channel.RESULTS.all])]
            assert back == forged

    async def test_secrets_are_not_logged(self, opened: Any) -> None:
        token = "ghp_" + "a1B2" * 9
        async with opened(secrets=("hunter2-hunter2",), blob_bytes=1024) as bus:
            await bus.publish(
                seat(
                    1,
                    answer=f"use {token}",
                    deep=[{"k hunter2-hunter2": "my hunter2-hunter2 " * 200}],
                )
            )
            await bus.put("task-1", {"diff": token})
            [back] = [r.event.data async for r in bus.replay([Channel.RESULTS.all])]
            assert back["answer"] == "use [redacted]"
            assert back["deep"] == [{"k [redacted]": "my [redacted] " * 200}]
            assert await bus.get("task-1") == {"diff": "[redacted]"}

    async def test_buckets(self, opened: Any) -> None:
        async with opened() as bus:
            bucket = bus.bucket("tools")
            assert await bucket.get("local.files.read") is None
            await bucket.create("local.files.read", {"enabled": False})
            with pytest.raises(AlreadyExists):
                await bucket.create("local.files.read", {"enabled": True})
            assert await bucket.get_with_revision("local.git.diff") == (None, 0)
            await bucket.replace("local.git.diff", {"enabled": False}, 0)
            document, revision = await bucket.get_with_revision("local.git.diff")
            assert (document, revision > 0) == ({"enabled": False}, True)
            await bucket.replace("local.git.diff", {"enabled": True}, revision)
            for stale in (0, revision):
                with pytest.raises(AlreadyExists):
                    await bucket.replace("local.git.diff", {"enabled": False}, stale)
            assert await bucket.get("local.files.read") == {"enabled": False}
            assert await bucket.entries() == {
                "local.files.read": {"enabled": False},
                "local.git.diff": {"enabled": True},
            }
            async with aclosing(bucket.follow()) as changes:
                entries = [await anext(changes), await anext(changes)]
                assert dict(entries) == await bucket.entries()
                await bucket.put("local.git.diff", {"enabled": False})
                assert await anext(changes) == ("local.git.diff", {"enabled": False})
            with pytest.raises(InvalidRequest, match="cannot be part of a subject"):
                await bucket.put("local.*", {})
            with pytest.raises(InvalidRequest, match="no bucket 'shoes'"):
                bus.bucket("shoes")

    async def test_documents(self, opened: Any) -> None:
        async with opened() as bus:
            assert await bus.get("task-1") is None
            assert list(await bus.keys()) == []
            await bus.put("task-1", {"status": "PENDING"})
            await bus.put("task-2", {"status": "PENDING"})
            await bus.put("task-1", {"status": "COMPLETED", "results": [1, {"a": None}]})
            assert await bus.get("task-1") == {"status": "COMPLETED", "results": [1, {"a": None}]}
            assert list(await bus.keys()) == ["task-1", "task-2"]
            for invalid_key in ("a..b", "", "*", "a b", ">"):
                with pytest.raises(InvalidRequest):
                    await bus.put(invalid_key, {})

    async def test_signals_reach_their_listeners(self, opened: Any) -> None:
        async with opened() as bus:
            received: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

            async def listen() -> None:
                async with aclosing(bus.signals(Channel.CANCEL.all)) as signals:
                    async for signal in signals:
                        received.put_nowait(signal)

            async with asyncio.TaskGroup() as group:
                listener = group.create_task(listen())
                async with asyncio.timeout(20):
                    while received.empty():
                        await bus.signal(
                            Channel.CANCEL.of("task-1"), {"task_id": "task-1", "reason": "enough"}
                        )
                        await asyncio.sleep(0.02)
                    assert await received.get() == {"task_id": "task-1", "reason": "enough"}
                listener.cancel()

    async def test_a_request_gets_one_reply_or_an_error_without_answerers(
        self, opened: Any
    ) -> None:
        topic, requests = Channel.REPOSITORIES.of("host-1"), list[Mapping[str, Any]]()

        async def answer(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
            requests.append(request)
            if request.get("number") == 2:
                raise InvalidRequest("nobody hears this")
            return {"number": request["number"]}, b"a\nb\x00" * 100_000

        async with opened() as bus, AsyncExitStack() as stack:
            with pytest.raises(BusUnavailable, match="nobody answers"):
                await bus.ask(topic, {}, 20)
            for _ in range(2):
                await stack.enter_async_context(
                    run_in_background(bus.answer(topic, answer, shared=True), "answers")
                )
            async with asyncio.timeout(20):
                while True:
                    try:
                        response, content = await bus.ask(topic, {"number": 1}, 20)
                        break
                    except BusUnavailable:
                        await asyncio.sleep(0.01)
            assert (response, content, len(requests)) == ({"number": 1}, b"a\nb\x00" * 100_000, 1)
            with pytest.raises(BusUnavailable, match="nobody answered"):
                await bus.ask(topic, {"number": 2}, 0.1)
            with pytest.raises(InvalidRequest, match="must have an id"):
                await bus.ask(Channel.REPOSITORIES.all, {}, 1)

    @pytest.mark.parametrize("task", ["a.b", "*", ">", "a b", "", "x" * 200, "a\r\nPUB x"])
    async def test_subjects_consist_of_valid_tokens(self, opened: Any, task: str) -> None:
        async with opened() as bus:
            with pytest.raises(InvalidRequest, match="task_id"):
                await bus.publish(seat(1, task))
            with pytest.raises(InvalidRequest):
                await bus.enqueue(Channel.WORK.of(task), requested("task-1"))
            with pytest.raises(InvalidRequest, match="subjects of one stream"):
                [_ async for _ in bus.replay([Channel.STORIES.all, Channel.AUDIT.all])]
            with pytest.raises(InvalidRequest, match="no stream stores"):
                [_ async for _ in bus.replay([Channel.CANCEL.all])]
            with pytest.raises(InvalidRequest, match="must have an id"):
                await bus.signal(Channel.CANCEL.all, {})
            with pytest.raises(InvalidRequest, match="not work"):
                await bus.enqueue(Channel.RESULTS.of("task-1"), requested("task-1"))

    async def test_ask_all_collects_all_replies_and_does_not_wait_without_answerers(
        self, opened: Any
    ) -> None:
        def named(name: str) -> ports.Answerer:
            async def answer(_request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
                return {"name": name}, b""

            return answer

        async with opened() as bus, AsyncExitStack() as stack:
            assert [response async for response in bus.ask_all(FLEET, {}, 600)] == []
            for name in ("one", "two"):
                await stack.enter_async_context(
                    run_in_background(bus.answer(FLEET, named(name)), name)
                )
            async with asyncio.timeout(20):
                names: list[Any] = []
                while len(names) < 2:  # until both listen
                    names = [response["name"] async for response in bus.ask_all(FLEET, {}, 0.3)]
            assert sorted(names) == ["one", "two"]
            with pytest.raises(InvalidRequest):
                bus.ask_all(Channel.HOSTS.all, {}, 1)
