"""Hosts for the tests of `workers.subprocesses`: a child process imports them by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path


async def write_pid(folder: Path, name: str, ready: Callable[[], None]) -> None:
    """Write `name` and this process's id to `folder` until cancelled."""
    print("ready")  # noqa: T201 - must not be taken for the host's own line
    (folder / name).write_text(str(os.getpid()))
    ready()
    try:
        await asyncio.Event().wait()
    finally:
        (folder / name).unlink()


async def never_ready(_name: str, _ready: Callable[[], None]) -> None:
    """Run until cancelled."""
    await asyncio.Event().wait()


async def end(_name: str, ready: Callable[[], None]) -> None:
    """Become ready and end."""
    ready()


async def fail(name: str, ready: Callable[[], None]) -> None:
    """Become ready and fail."""
    ready()
    raise LookupError(f"{name} has a bug")


class OddError(Exception):
    """An error that cannot be unpickled, because its arguments are not those of `__init__`."""

    def __init__(self, subject: str, predicate: str) -> None:
        super().__init__(subject + predicate)


async def fail_oddly(_name: str, _ready: Callable[[], None]) -> None:
    """Fail with an error that cannot be restored in another process."""
    raise OddError("an odd", " bug")
