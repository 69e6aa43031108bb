"""Counters, gauges and histograms as plain numbers in dictionaries: an addition costs less than a
microsecond.

They belong to one event loop. Labels are few and bounded: past `MOST` combinations of one figure
everything further is counted under `other`, so that hostile names can't fill the memory of whoever
stores them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, TypeVar

Labels = tuple[str, ...]
FigureKind = Literal["counter", "gauge", "histogram"]

MOST = 256
LABEL_CHARS = 100
OTHER = "other"

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)
BYTES = (1e6, 4e6, 16e6, 64e6, 256e6, 1e9, 4e9)


@dataclass(slots=True)
class Metric:
    """What all kinds have in common. `name` is Prometheus's; a counter's has `_total` at its
    end.
    """

    name: str
    about: str
    labels: tuple[str, ...] = ()
    kind: FigureKind = "gauge"

    def _bound_labels(self, key: Labels, known: Mapping[Labels, Any]) -> Labels:
        """Return the labels to count under. Asked only where these are new."""
        if len(key) != len(self.labels):
            raise TypeError(f"{self.name} has the labels {self.labels}, not {key}")
        if len(known) >= MOST and key:
            return (OTHER,) * len(key)
        return tuple(label[:LABEL_CHARS] for label in key)


@dataclass(slots=True)
class Counter(Metric):
    """Only grows."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: FigureKind = "counter"

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count."""
        values = self.values
        if labels not in values:
            labels = self._bound_labels(labels, values)
        values[labels] = values.get(labels, 0.0) + amount


@dataclass(slots=True)
class Gauge(Metric):
    """Goes up and down."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: FigureKind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Say how it stands."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        self.values[labels] = value

    def track_inprogress(self, *labels: str) -> _Held:
        """One more while the body of a `with` runs."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        return _Held(self.values, labels)


@dataclass(slots=True)
class Histogram(Metric):
    """How often a value was how large. `buckets` are upper bounds; values are seconds or bytes, as
    the name says.
    """

    buckets: tuple[float, ...] = SECONDS
    counts: dict[Labels, list[float]] = field(default_factory=dict)
    """For each labels: how many fell into each bucket, the last one without a bound, and then the
    sum.
    """
    kind: FigureKind = "histogram"

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        row = self.counts.get(labels)
        if row is None:
            labels = self._bound_labels(labels, self.counts)
            row = self.counts.setdefault(labels, [0.0] * (len(self.buckets) + 2))
        row[bisect_left(self.buckets, value)] += 1
        row[-1] += value

    def time(self, *labels: str) -> _Timed:
        """Observe how many seconds the body of a `with` takes, however it ends."""
        return _Timed(self, labels)


class _Held:
    """By hand and not by `contextmanager`, which costs ten times as much; so is `_Timed`."""

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


AnyFigure = Counter | Gauge | Histogram
F = TypeVar("F", Counter, Gauge, Histogram)
Snapshot = dict[str, list[list[Any]]]
"""By the figure's name: rows of [labels, value], for a histogram [labels, counts and sum]."""


class MetricRegistry:
    """All figures of a process, by name."""

    def __init__(self) -> None:
        self._figures: dict[str, AnyFigure] = {}
        self._before: list[Callable[[], None]] = []

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """Make a counter."""
        return self._add(Counter(name, about, labels))

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return self._add(Gauge(name, about, labels))

    def histogram(
        self, name: str, about: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        """Make a histogram."""
        return self._add(Histogram(name, about, labels, buckets=buckets))

    @contextmanager
    def looking(self, act: Callable[[], None]) -> Iterator[None]:
        """Inside, call `act` before every snapshot: it sets what is looked up and not counted."""
        self._before.append(act)
        try:
            yield
        finally:
            self._before.remove(act)

    @property
    def figures(self) -> Mapping[str, AnyFigure]:
        """By name."""
        return self._figures

    def snapshot(self) -> Snapshot:
        """Return how all figures stand, as JSON can say it. Those that nothing was counted of are
        left out.
        """
        for act in self._before:
            act()
        found: Snapshot = {}
        for name, figure in self._figures.items():
            if isinstance(figure, Histogram):
                rows: list[list[Any]] = [
                    [list(labels), list(row)] for labels, row in figure.counts.items()
                ]
            else:
                rows = [[list(labels), value] for labels, value in figure.values.items()]
            if rows:
                found[name] = rows
        return found

    def _add(self, figure: F) -> F:
        if figure.name in self._figures:
            raise ValueError(f"there is a figure {figure.name} already")
        self._figures[figure.name] = figure
        return figure
