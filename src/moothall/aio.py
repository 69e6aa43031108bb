"""Running something beside a block of code, starting slow parts side by side, the time that is left, and what groups of errors hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from moothall.errors import MoothallError

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
PATIENCE = 2.0
"""Seconds that nothing is said of a wait."""


def seconds_until(moment: datetime) -> float:
    """Return how many seconds are left; fewer than none once the moment is past."""
    return (moment - datetime.now(UTC)).total_seconds()


def leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """Yield the errors of a group and of the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` until the block ends. The block's own error comes out as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name=name)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as group_error:
        if len(group_error.exceptions) == 1:
            raise group_error.exceptions[0] from group_error.exceptions[0].__cause__
        raise


@contextmanager
def said(tell: Callable[[str], None], what: str) -> Iterator[None]:
    """Say what is waited for, where the body takes longer than one waits gladly without a word."""
    telling = asyncio.get_running_loop().call_later(PATIENCE, tell, f"waiting for {what}")
    try:
        yield
    finally:
        telling.cancel()


@asynccontextmanager
async def start_beside(part: AbstractAsyncContextManager[T]) -> AsyncIterator[asyncio.Future[T]]:
    """Enter `part` in a task of its own and yield a future of its value, so that several can start at once.

    The task is also the one that leaves it, as task groups inside demand.
    """
    loop = asyncio.get_running_loop()
    value: asyncio.Future[T] = loop.create_future()
    over = asyncio.Event()

    async def hold() -> None:
        try:
            async with part as entered:
                value.set_result(entered)
                await over.wait()
        except MoothallError as error:
            if value.done():
                raise
            value.set_exception(error)

    async with asyncio.TaskGroup() as group:
        holder = group.create_task(hold())
        try:
            yield value
        finally:
            over.set()
            if not value.done():
                holder.cancel()
            elif not value.cancelled():
                value.exception()  # whoever awaited it has heard; where nobody did, another part failed first
