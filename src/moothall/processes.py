"""Child processes that inherit only the descriptors that they are given, and files that
processes share.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

# Files that processes share: locks, which the kernel lets go when their holder ends, however it
# ends; and texts for their owner alone.


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


# Child processes that inherit only the descriptors that they are given.
#
# uvloop ignores `close_fds`: a child gets every inheritable descriptor of its parent, such as those
# that the starting shell had open. So children are started here, and only here (ruff's TID251).


_STDERR = 2


def mark_close_on_exec() -> None:
    """Mark every open descriptor above stderr close-on-exec."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names, not paths
        if int(name) > _STDERR:
            with suppress(OSError):  # it is the listing's own, or another thread closed it
                os.set_inheritable(int(name), False)


async def start_process(
    *argv: str, pass_fds: Sequence[int] = (), **options: Any
) -> asyncio.subprocess.Process:
    """Start a child that inherits only its standard streams and `pass_fds`.

    `options` are those of `asyncio.create_subprocess_exec`, which also names the errors.
    """
    mark_close_on_exec()
    return await asyncio.create_subprocess_exec(*argv, pass_fds=pass_fds, **options)  # noqa: TID251 - here only
