"""Files that processes share: locks, which the kernel lets go when their holder ends, however it
ends; and texts for their owner alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

_PAUSE = 0.05


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, unless another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on NFS
        return False
    return True


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Hold the lock of a file, which is made where it is not there. Yields False where another
    holds it.
    """
    descriptor = _open(path)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def lock(path: Path) -> AsyncIterator[None]:
    """Wait for the lock of a file, which is made where it is not there, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        while not try_lock(descriptor):  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a text that only its owner can read, in one step: whoever reads finds the one before it
    or all of this one.
    """
    fresh = path.with_suffix(".new")
    with os.fdopen(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600),
        "w",
        encoding="utf-8",
    ) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    fresh.replace(path)
