from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moothall.workers.subprocesses import hosting_in_process


async def test_hosts_are_available_once_all_are_ready_and_gone_at_the_end() -> None:
    messages: list[str] = []

    async def main(name: str, ready: Callable[[], None]) -> None:
        messages.append(f"{name} begins")
        await asyncio.sleep(0)
        ready()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # its workspaces are closed
            messages.append(f"{name} has let go")

    async with hosting_in_process(2, main) as alive:
        assert messages == ["host-1 begins", "host-2 begins"]
        assert await alive() == (2, 2)
    assert messages[2:] == ["host-1 has let go", "host-2 has let go"]
    assert await alive() == (0, 2)


async def test_a_host_that_cannot_start_fails_the_start() -> None:
    async def main(name: str, ready: Callable[[], None]) -> None:
        raise LookupError(name)

    with pytest.raises(ExceptionGroup) as caught:
        async with hosting_in_process(1, main):
            pytest.fail("nothing hosts")
    assert caught.group_contains(LookupError, match="host-1")


async def test_a_failing_host_ends_the_body() -> None:
    broken = asyncio.Event()

    async def main(_name: str, ready: Callable[[], None]) -> None:
        ready()
        await broken.wait()
        raise LookupError("a bug")

    async def body() -> None:
        async with hosting_in_process(1, main):
            broken.set()
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert caught.group_contains(LookupError, match="a bug")
