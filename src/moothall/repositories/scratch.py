"""Temporary folders that are cleaned up even after a killed process: each is locked by its owner,
and folders without an owner are removed.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moothall.processes import try_lock

_PREFIX = "moothall-scratch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that exists as long as the context. The first call in a process removes the
    folders that killed processes left.
    """
    _sweep_once()
    folder, lock = _create()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> int:
    """Remove the folders whose owner is gone, and return their number."""
    count = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            count += 1
    return count


@functools.cache
def _sweep_once() -> None:
    sweep()


def _create() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _lock(folder)
        if lock is not None:
            if folder.exists():
                return folder, lock
            os.close(lock)  # another process removed the folder before it was locked


def _lock(folder: Path) -> int | None:
    """Return a descriptor that locks the folder. Return None if another process holds the lock, or
    if the folder is gone or belongs to another user.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
