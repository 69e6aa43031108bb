"""The time that processes of this machine waited for a core. Standard library only: part of the
executor.
"""

from __future__ import annotations

import os
import time

GENEROUS = 3
"""The factor by which a check may exceed its limit on a busy machine."""
BUSY = " while the machine was busy"
"""Marks a time limit that was hit because the machine was busy. `plugins/moothall_clock.py` has the
same words."""
_FILE = "/proc/pressure/cpu"


class Contention:
    """The time since its creation in which some process waited for a core."""

    def __init__(self, file: str = _FILE) -> None:
        self._file = file
        self._started_at, self._initial_total = time.monotonic(), _read_total(file)

    def seconds(self) -> float:
        """Return the seconds. If the kernel does not count them, a load above the number of cores
        counts as all of the time.
        """
        passed, total = time.monotonic() - self._started_at, _read_total(self._file)
        if total is None or self._initial_total is None:
            return passed if os.getloadavg()[0] > len(os.sched_getaffinity(0)) else 0.0
        return max(0.0, min(passed, total - self._initial_total))


def _read_total(file: str) -> float | None:
    """Return the seconds since the start of the machine, None if the kernel does not count them."""
    try:
        with open(file, encoding="ascii") as text:  # noqa: PTH123 - pathlib costs the executor start time
            return int(text.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
