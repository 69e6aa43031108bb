"""The metrics of all processes. Hosts report theirs over the bus; the serving process shows them.

A report is a whole snapshot, so the next one replaces a lost one, and hosts need no port, shared
folder or discovery. A process without a report for `PATIENCE` intervals is forgotten. A restarted
host replaces its own metrics, and a scraper treats a counter that fell as restarted.
"""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moothall import __version__
from moothall.domain.event import Channel, Topic
from moothall.errors import BusUnavailable
from moothall.telemetry import metrics
from moothall.telemetry.metrics import LABEL_CHARS, MAX_LABEL_SETS, REGISTRY, Histogram, Snapshot
from moothall.telemetry.tracing import get_logger

log = get_logger(__name__)

PATIENCE = 6
_PROCESSES = 1000
REPORT_SECONDS = 5.0
"""How often hosts report their metrics to the serving process."""
_NAME_CHARS = 64


async def report(
    signal: Callable[[Topic, Mapping[str, Any]], Awaitable[None]], process: str, seconds: float
) -> None:
    """Send this process's metrics every `seconds` until cancelled. A report that cannot be sent is
    skipped.
    """
    while True:
        try:
            await signal(
                Channel.FIGURES.of(process), {"process": process, "figures": REGISTRY.snapshot()}
            )
        except BusUnavailable as error:
            log.debug("figures not reported", reason=error.message)
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Reports:
    """The last reports of other processes. seconds: the interval between reports."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _reports: dict[str, tuple[float, Snapshot]] = field(default_factory=dict)

    def add(self, data: Mapping[str, Any]) -> None:
        """Store a report instead of the process's last one, without malformed rows."""
        process, figures = data.get("process"), data.get("figures")
        if (
            not isinstance(process, str)
            or not 0 < len(process) <= _NAME_CHARS
            or not isinstance(figures, Mapping)
        ):
            return
        self._forget()
        if process in self._reports or len(self._reports) < _PROCESSES:
            self._reports[process] = (
                self.clock(),
                {name: list(_rows(name, rows)) for name, rows in figures.items()},
            )

    def snapshots(self, own_name: str) -> Mapping[str, Snapshot]:
        """Return the metrics by process, with this one under the name `own_name`."""
        self._forget()
        return {own_name: REGISTRY.snapshot()} | {
            process: snapshot
            for process, (_, snapshot) in self._reports.items()
            if process != own_name
        }

    def _forget(self) -> None:
        oldest = self.clock() - PATIENCE * self.seconds
        self._reports = {
            process: report for process, report in self._reports.items() if report[0] >= oldest
        }


def _rows(name: str, rows: object) -> Iterator[list[Any]]:
    """Yield the well-formed rows of a known metric."""
    figure = REGISTRY.figures.get(name)
    if figure is None or not isinstance(rows, list):
        return
    for row in rows[: MAX_LABEL_SETS + 1]:
        match row:
            case [list(labels), value] if len(labels) == len(figure.labels) and all(
                isinstance(label, str) for label in labels
            ):
                value_count = len(figure.buckets) + 2 if isinstance(figure, Histogram) else 0
                fits = (
                    isinstance(value, list)
                    and len(value) == value_count
                    and all(map(_is_number, value))
                    if value_count
                    else _is_number(value)
                )
                if fits:
                    yield [[label[:LABEL_CHARS] for label in labels], value]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@contextmanager
def watch() -> Iterator[None]:
    """Update this process's own metrics before each snapshot, until the context ends."""
    import psutil

    this = psutil.Process()
    metrics.BUILD.set(1, __version__, platform.python_version())
    metrics.PROCESS_START_SECONDS.set(this.create_time())

    def update() -> None:
        with this.oneshot():
            times = this.cpu_times()
            metrics.PROCESS_CPU_SECONDS.values[()] = times.user + times.system
            metrics.PROCESS_MEMORY_BYTES.set(this.memory_info().rss)
            metrics.PROCESS_OPEN_FILES.set(this.num_fds() if hasattr(this, "num_fds") else 0)

    with metrics.REGISTRY.before_snapshot(update):
        yield
