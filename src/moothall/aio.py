"""Running something beside a block of code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


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
