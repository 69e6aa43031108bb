"""Temporary folders that do not outlive a killed process for long: each is locked by its owner, and
what nobody holds is swept.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moothall.file_locks import try_lock

_PREFIX = "moothall-scratch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for as long as the context lasts. A process's first one sweeps away what killed
    processes left.
    """
    _sweep_once()
    folder, held = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep() -> int:
    """Remove the folders whose owner is gone; return how many there were."""
    swept = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        held = _hold(folder)
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
            swept += 1
    return swept


@functools.cache
def _sweep_once() -> None:
    sweep()


def _make() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        held = _hold(folder)
        if held is not None:
            if folder.exists():
                return folder, held
            os.close(held)  # somebody swept it in the moment in which it was nobody's


def _hold(folder: Path) -> int | None:
    """Return a descriptor that holds the folder's lock; None where another has it, or it is gone or
    another user's.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
