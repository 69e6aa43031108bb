"""What is brought once, for all runs of the tests: in the user's cache."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs


def kept(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the file or folder that is kept under a name. Where it is not there yet, `make` makes
    it in a folder that goes away, and returns what to keep. One process makes it, others wait for
    it.
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
