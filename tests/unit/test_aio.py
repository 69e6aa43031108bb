from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from moothall.aio import PATIENCE, said, start_beside
from moothall.errors import ConfigurationError


async def test_parts_start_side_by_side_and_close() -> None:
    said: list[str] = []
    both = asyncio.Barrier(2)

    @asynccontextmanager
    async def part(name: str) -> AsyncIterator[str]:
        await both.wait()  # neither passes before the other has begun
        yield name
        said.append(f"{name} closed")

    async with start_beside(part("one")) as one, start_beside(part("two")) as two:
        assert (await one, await two) == ("one", "two")
    assert said == ["two closed", "one closed"]


async def test_a_part_that_cannot_start_says_so_to_whoever_awaits_it() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        check_fails()
        yield

    def check_fails() -> None:
        raise ConfigurationError("no such thing")

    with pytest.raises(ExceptionGroup) as caught:
        async with start_beside(broken()) as part:
            await part
    assert caught.group_contains(ConfigurationError, match="no such thing")


async def test_a_part_that_still_starts_is_cancelled_when_another_fails() -> None:
    ended = asyncio.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.set()

    async def body() -> None:
        async with start_beside(endless()):
            await asyncio.sleep(0)  # it has begun
            raise ConfigurationError("another part")

    with pytest.raises(ExceptionGroup):
        await body()
    assert ended.is_set()


async def test_a_part_that_dies_later_ends_the_body() -> None:
    @asynccontextmanager
    async def dying() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            yield

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError("a bug")

    async def body() -> None:
        async with start_beside(dying()) as part:
            await part
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await body()


async def test_a_wait_is_spoken_of_only_when_it_is_long() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    with said(told.append, "nothing much"):
        await asyncio.sleep(0)
    with said(told.append, "the bus"):
        now = loop.time()
        loop.time = lambda: now + PATIENCE + 1  # type: ignore[method-assign]  # nobody waits for it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    del loop.time
    assert told == ["waiting for the bus"]
