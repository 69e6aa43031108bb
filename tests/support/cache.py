"""Downloads and builds in the user's cache, shared by all test runs."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs


def cached(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the file or folder that is cached under a name.

    If it does not exist yet, `make` creates it in a temporary folder and returns what to cache. One
    process creates it, others wait.
    """
    at = Path(platformdirs.user_cache_dir("moothall")) / name
    if at.exists():
        return at
    at.parent.mkdir(parents=True, exist_ok=True)
    with (at.parent / f"{name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not at.exists():
            with tempfile.TemporaryDirectory(dir=at.parent) as draft:
                make(Path(draft)).replace(at)
    return at
