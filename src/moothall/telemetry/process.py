"""Figures of this process itself, looked up when they are read."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

from moothall import __version__
from moothall.telemetry import metrics


@contextmanager
def watched() -> Iterator[None]:
    """Inside, every reading of the figures says what this process uses."""
    import psutil

    this = psutil.Process()
    metrics.BUILD.set(1, __version__, platform.python_version())
    metrics.PROCESS_START_SECONDS.set(this.create_time())

    def look() -> None:
        with this.oneshot():
            times = this.cpu_times()
            metrics.PROCESS_CPU_SECONDS.values[()] = times.user + times.system
            metrics.PROCESS_MEMORY_BYTES.set(this.memory_info().rss)
            metrics.PROCESS_OPEN_FILES.set(this.num_fds() if hasattr(this, "num_fds") else 0)

    with metrics.REGISTRY.looking(look):
        yield
