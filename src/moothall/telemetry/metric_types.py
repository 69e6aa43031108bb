"""Counters, gauges and histograms as numbers in dictionaries. An addition takes less than a
microsecond.

They belong to one event loop. Labels are bounded: after `MOST` combinations of one metric, further
ones count as `other`, so that hostile names cannot fill the memory of the process and its scraper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, TypeVar

Labels = tuple[str, ...]
MetricKind = Literal["counter", "gauge", "histogram"]

MOST = 256
LABEL_CHARS = 100
OTHER = "other"

TOKENS = tuple(4.0**power for power in range(14))
SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)
BYTES = (1e6, 4e6, 16e6, 64e6, 256e6, 1e9, 4e9)


@dataclass(slots=True)
class Metric:
    """The base of all kinds. name: as for Prometheus; that of a counter ends with `_total`."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = "gauge"

    def _bound_labels(self, key: Labels, known: Mapping[Labels, Any]) -> Labels:
        """Return the labels to count under, for labels that are new."""
        if len(key) != len(self.labels):
            raise TypeError(f"{self.name} has the labels {self.labels}, not {key}")
        if len(known) >= MOST and key:
            return (OTHER,) * len(key)
        return tuple(label[:LABEL_CHARS] for label in key)


@dataclass(slots=True)
class Counter(Metric):
    """A metric that only grows."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: MetricKind = "counter"

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to the counter."""
        values = self.values
        if labels not in values:
            labels = self._bound_labels(labels, values)
        values[labels] = values.get(labels, 0.0) + amount


@dataclass(slots=True)
class Gauge(Metric):
    """A metric that goes up and down."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: MetricKind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the value."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        self.values[labels] = value

    def track_inprogress(self, *labels: str) -> _InProgress:
        """Return a context manager that counts one while its body runs."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        return _InProgress(self.values, labels)


@dataclass(slots=True)
class Histogram(Metric):
    """A distribution of values in seconds, bytes or tokens. buckets: upper bounds."""

    buckets: tuple[float, ...] = SECONDS
    counts: dict[Labels, list[float]] = field(default_factory=dict)
    """By labels: the count of each bucket, the last one without a bound, and then the sum."""
    kind: MetricKind = "histogram"

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        row = self.counts.get(labels)
        if row is None:
            labels = self._bound_labels(labels, self.counts)
            row = self.counts.setdefault(labels, [0.0] * (len(self.buckets) + 2))
        row[bisect_left(self.buckets, value)] += 1
        row[-1] += value

    def time(self, *labels: str) -> _Timed:
        """Return a context manager that observes the seconds of its body, however it ends."""
        return _Timed(self, labels)


class _InProgress:
    """A class, like `_Timed`, since `contextmanager` takes ten times as long."""

    __slots__ = ("_labels", "_values")

    def __init__(self, values: dict[Labels, float], labels: Labels) -> None:
        self._values = values
        self._labels = labels

    def __enter__(self) -> None:
        self._values[self._labels] = self._values.get(self._labels, 0.0) + 1

    def __exit__(self, *_: object) -> None:
        self._values[self._labels] -= 1


class _Timed:
    __slots__ = ("_histogram", "_labels", "_started")

    def __init__(self, histogram: Histogram, labels: Labels) -> None:
        self._histogram = histogram
        self._labels = labels

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._histogram.observe(perf_counter() - self._started, *self._labels)


AnyMetric = Counter | Gauge | Histogram
F = TypeVar("F", Counter, Gauge, Histogram)
Snapshot = dict[str, list[list[Any]]]
"""By name of the metric: rows of [labels, value]; for a histogram [labels, counts and sum]."""


class MetricRegistry:
    """All metrics of a process, by name."""

    def __init__(self) -> None:
        self._figures: dict[str, AnyMetric] = {}
        self._before: list[Callable[[], None]] = []

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """Create a counter."""
        return self._add(Counter(name, about, labels))

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Create a gauge."""
        return self._add(Gauge(name, about, labels))

    def histogram(
        self, name: str, about: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        """Create a histogram."""
        return self._add(Histogram(name, about, labels, buckets=buckets))

    @contextmanager
    def before_snapshot(self, update: Callable[[], None]) -> Iterator[None]:
        """Call `update` before each snapshot, until the context ends."""
        self._before.append(update)
        try:
            yield
        finally:
            self._before.remove(update)

    @property
    def figures(self) -> Mapping[str, AnyMetric]:
        """The metrics by name."""
        return self._figures

    def snapshot(self) -> Snapshot:
        """Return all metrics that have a value, as JSON data."""
        for update in self._before:
            update()
        snapshot: Snapshot = {}
        for name, figure in self._figures.items():
            if isinstance(figure, Histogram):
                rows: list[list[Any]] = [
                    [list(labels), list(row)] for labels, row in figure.counts.items()
                ]
            else:
                rows = [[list(labels), value] for labels, value in figure.values.items()]
            if rows:
                snapshot[name] = rows
        return snapshot

    def _add(self, figure: F) -> F:
        if figure.name in self._figures:
            raise ValueError(f"there is a metric {figure.name} already")
        self._figures[figure.name] = figure
        return figure
