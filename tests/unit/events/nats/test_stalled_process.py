"""A process that stalls again before the work that it lost the first time has ended."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from moothall.concurrency import Capacity
from moothall.domain.event import Recorded
from moothall.events.nats.consumer import PullConsumer, Reader
from moothall.events.registry import durable


async def test_held_work_can_be_dropped_twice_without_harm() -> None:
    async def fail_if_called(_recorded: Recorded) -> None:
        raise AssertionError("nothing is delivered")

    unused = cast("Any", None)
    taking = PullConsumer(unused, unused, durable("collector"), Reader(fail_if_called), Capacity(1))
    lost_count = 0

    async def work() -> None:
        nonlocal lost_count
        async with asyncio.timeout(None) as lease:
            taking.leases["message"] = lease
            taking._drop_held()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                taking._drop_held()
                lost_count += 1
                raise

    with pytest.raises(TimeoutError):
        await work()
    assert lost_count == 1
