"""The figures of all processes in one place: hosts report theirs over the bus, the serving process
shows them.

A report is the whole snapshot, so that one that was lost is made up by the next, and it needs no
port, no shared folder
and no discovery on another machine. Who has said nothing for `PATIENCE` reports is forgotten, as a
scraper does with a target that is gone; a host that begins again replaces its own figures, and a
scraper knows a counter that fell for one
that began again.
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
from moothall.domain.topic import Channel, Topic
from moothall.errors import BusUnavailable
from moothall.telemetry import metrics
from moothall.telemetry.logs import get_logger
from moothall.telemetry.metric_types import LABEL_CHARS, MOST, Histogram, Snapshot
from moothall.telemetry.metrics import REGISTRY

log = get_logger(__name__)

PATIENCE = 6
_PROCESSES = 1000
_NAME_CHARS = 64


async def report(
    signal: Callable[[Topic, Mapping[str, Any]], Awaitable[None]], process: str, seconds: float
) -> None:
    """Send this process's figures every `seconds` until cancelled. One that cannot be sent is made
    up by the next.
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
    """What others reported last. `seconds` is how often they do."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Snapshot]] = field(default_factory=dict)

    def take(self, data: Mapping[str, Any]) -> None:
        """Keep a report in place of the last one of the same process. What is wrong in it is left
        out.
        """
        process, figures = data.get("process"), data.get("figures")
        if (
            not isinstance(process, str)
            or not 0 < len(process) <= _NAME_CHARS
            or not isinstance(figures, Mapping)
        ):
            return
        self._forget()
        if process in self._known or len(self._known) < _PROCESSES:
            self._known[process] = (
                self.clock(),
                {name: list(_rows(name, rows)) for name, rows in figures.items()},
            )

    def snapshots(self, own: str) -> Mapping[str, Snapshot]:
        """Return the figures by process; this one is called `own`."""
        self._forget()
        return {own: REGISTRY.snapshot()} | {
            process: found for process, (_, found) in self._known.items() if process != own
        }

    def _forget(self) -> None:
        oldest = self.clock() - PATIENCE * self.seconds
        self._known = {
            process: report for process, report in self._known.items() if report[0] >= oldest
        }


def _rows(name: str, rows: object) -> Iterator[list[Any]]:
    """Yield the rows of a figure that we know, each with as many labels and numbers as it has."""
    figure = REGISTRY.figures.get(name)
    if figure is None or not isinstance(rows, list):
        return
    for row in rows[: MOST + 1]:
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
