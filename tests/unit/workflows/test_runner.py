from __future__ import annotations

import asyncio

import pytest

from moothall.workflows.runner import log_exceptions


async def test_an_error_in_one_workflow_does_not_end_another() -> None:
    async def raise_bug() -> None:
        await asyncio.sleep(0)
        raise OverflowError("no calendar holds this")

    finished: list[str] = []

    async def fine() -> None:
        await asyncio.sleep(0.05)
        finished.append("fine")

    async with asyncio.TaskGroup() as group:
        group.create_task(log_exceptions(raise_bug(), "one"))
        group.create_task(log_exceptions(fine(), "other"))
    assert finished == ["fine"]


async def test_a_cancelled_workflow_stops() -> None:
    task = asyncio.ensure_future(log_exceptions(asyncio.sleep(60), "one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
