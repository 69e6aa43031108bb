from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from moothall.concurrency import (
    SLOW_SECONDS,
    Broadcast,
    Pace,
    merge,
    read_body,
    report_if_slow,
    run_in_background_if_slow,
    start_in_own_task,
)
from moothall.errors import BusUnavailable, ConfigurationError


async def test_parts_start_concurrently_and_are_closed() -> None:
    closed: list[str] = []
    barrier = asyncio.Barrier(2)

    @asynccontextmanager
    async def part(name: str) -> AsyncIterator[str]:
        await barrier.wait()  # neither passes before the other has started
        yield name
        closed.append(f"{name} closed")

    async with (
        start_in_own_task(part("one")) as first_part,
        start_in_own_task(part("two")) as second_part,
    ):
        assert (await first_part, await second_part) == ("one", "two")
    assert closed == ["two closed", "one closed"]


async def test_a_failed_start_is_raised_to_the_awaiting_body() -> None:
    @asynccontextmanager
    async def break_at_start() -> AsyncIterator[None]:
        check_fails()
        yield

    def check_fails() -> None:
        raise ConfigurationError("no such thing")

    with pytest.raises(ExceptionGroup) as caught:
        async with start_in_own_task(break_at_start()) as part:
            await part
    assert caught.group_contains(ConfigurationError, match="no such thing")


async def test_a_starting_part_is_cancelled_when_another_fails() -> None:
    ended = asyncio.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.set()

    async def body() -> None:
        async with start_in_own_task(endless()):
            await asyncio.sleep(0)  # it has begun
            raise ConfigurationError("another part")

    with pytest.raises(ExceptionGroup):
        await body()
    assert ended.is_set()


async def test_a_part_that_fails_later_ends_the_body() -> None:
    @asynccontextmanager
    async def dying() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            yield

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError("a bug")

    async def body() -> None:
        async with start_in_own_task(dying()) as part:
            await part
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await body()


async def test_only_a_long_wait_is_reported() -> None:
    messages: list[str] = []
    loop = asyncio.get_running_loop()
    with report_if_slow(messages.append, "nothing much"):
        await asyncio.sleep(0)
    with report_if_slow(messages.append, "the bus"):
        now = loop.time()
        loop.time = lambda: now + SLOW_SECONDS + 1  # type: ignore[method-assign]  # no real wait
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    del loop.time
    assert messages == ["waiting for the bus"]


async def test_a_broadcast_reads_its_source_once_and_slow_listeners_get_batches() -> None:
    started, ended, go = 0, 0, asyncio.Queue[int | None]()

    async def source() -> AsyncGenerator[int, None]:
        nonlocal started, ended
        started += 1
        try:
            while (item := await go.get()) is not None:
                yield item
        finally:
            ended += 1

    fan = Broadcast(source)
    prompt_reader, late_reader = fan.subscribe(), fan.subscribe()
    go.put_nowait(1)
    assert await anext(prompt_reader) == [1]
    assert await anext(late_reader) == [1]  # it came later, and receives the latest first
    for item in (2, 3, 4):
        go.put_nowait(item)
    while not go.empty():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await anext(prompt_reader) == [2, 3, 4]
    await prompt_reader.aclose()
    assert (started, ended) == (1, 0)
    await late_reader.aclose()
    await asyncio.sleep(0.01)
    assert (started, ended) == (1, 1)  # there is no listener any longer
    later_reader = fan.subscribe()
    go.put_nowait(5)
    assert await anext(later_reader) == [5]
    go.put_nowait(None)
    assert await anext(later_reader, None) is None
    assert (started, ended) == (2, 2)


async def test_listeners_get_the_error_of_the_source() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise BusUnavailable("the bus was closed")

    fan = Broadcast(source)
    items = fan.subscribe()
    assert await anext(items) == [1]
    with pytest.raises(BusUnavailable):
        await anext(items)
    assert await anext(fan.subscribe()) == [1]  # and it may be retried


async def test_a_listener_that_joins_as_the_last_one_leaves_has_a_source() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    fan = Broadcast(source)
    first = fan.subscribe()
    assert await anext(first) == [1]
    await first.aclose()
    second = fan.subscribe()
    assert await asyncio.wait_for(anext(second), 5) == [1]
    await second.aclose()


async def _brings(*items: int, raises: type[Exception] | None = None) -> AsyncGenerator[int, None]:
    for item in items:
        await asyncio.sleep(0)
        yield item
    if raises is not None:
        raise raises("it broke")


async def _forever(closed: list[bool]) -> AsyncGenerator[int, None]:
    try:
        while True:
            await asyncio.sleep(0)
            yield 0
    finally:
        closed.append(True)


async def test_several_sources_are_merged_until_the_first_ends() -> None:
    closed: list[bool] = []
    async with asyncio.timeout(10):
        merged_items = [
            item
            async for item in merge(_brings(1, 2, 3), _brings(10), _forever(closed), max_queued=2)
        ]
    assert [item for item in merged_items if 0 < item < 10] == [1, 2, 3]
    assert 10 in merged_items
    assert closed == [True]


@pytest.mark.parametrize("place", [0, 1])
async def test_an_error_of_one_source_is_raised_and_the_others_are_closed(place: int) -> None:
    closed: list[bool] = []
    sources = [_forever(closed), _forever(closed)]
    sources[place] = _brings(1, raises=OSError)
    async with asyncio.timeout(10):
        with pytest.raises(OSError, match="it broke"):
            [item async for item in merge(sources[0], sources[1], max_queued=2)]
    assert closed == [True]


async def test_the_items_waiting_for_a_slow_reader_are_limited() -> None:
    produced: list[int] = []

    async def produce_many() -> AsyncGenerator[int, None]:
        for item in range(100):
            produced.append(item)
            yield item

    async with aclosing(merge(produce_many(), max_queued=3)) as items:
        assert await anext(items) == 0
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(produced) <= 6


@pytest.mark.parametrize(("limit", "expected"), [(5, None), (6, b"abcdef"), (7, b"abcdef")])
async def test_a_body_in_pieces_is_read_to_its_end_or_limit(
    limit: int, expected: bytes | None
) -> None:
    stream = asyncio.StreamReader()

    async def comes() -> None:
        for piece in (b"abc", b"def"):
            stream.feed_data(piece)
            await asyncio.sleep(0)
        stream.feed_eof()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(comes())
        assert await read_body(stream.readexactly, limit) == expected


async def test_a_first_source_that_is_cancelled_from_within_ends_the_others() -> None:
    async def cancelled() -> AsyncGenerator[int, None]:
        yield 1
        raise asyncio.CancelledError

    closed: list[bool] = []
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            [item async for item in merge(cancelled(), _forever(closed), max_queued=2)]
    assert closed == [True]


@pytest.mark.parametrize(("max_seconds", "has_turn"), [(0.0, True), (1e6, False)])
async def test_a_long_loop_yields_to_other_tasks(max_seconds: float, has_turn: bool) -> None:  # noqa: FBT001
    turns: list[str] = []

    async def take_a_turn() -> None:
        turns.append("other")

    other_task = asyncio.create_task(take_a_turn())
    pace = Pace(max_seconds)
    for _ in range(3):
        await pace.step()
    assert bool(turns) is has_turn
    await other_task


async def test_work_beside_a_short_block_never_starts() -> None:
    async def never() -> None:
        raise AssertionError

    async with run_in_background_if_slow(never, 60, "never"):
        await asyncio.sleep(0)


async def test_work_beside_a_long_block_ends_with_it() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with run_in_background_if_slow(work, 0, "work"):
        await started.wait()
    assert ended.is_set()


async def test_an_error_of_work_beside_a_long_block_comes_out() -> None:
    failed = asyncio.Event()

    async def work() -> None:
        failed.set()
        raise BusUnavailable("away")

    with pytest.raises(BusUnavailable, match="away"):
        async with run_in_background_if_slow(work, 0, "work"):
            await failed.wait()
