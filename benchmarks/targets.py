"""Targets of the design, and the measured values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.commands import FIRST_EVENT, LISTED, SERVE_READY, UNAUTHORIZED, UNREACHABLE
from benchmarks.comparison import MOOTHALL


@dataclass(frozen=True, slots=True)
class Target:
    """A target with its measured value. `sense` is 1 if more is better, -1 if less is."""

    name: str
    required: str
    goal: str
    value: float
    unit: str
    sense: int

    @property
    def verdict(self) -> str:
        """Whether the requirement and the goal are reached."""
        if self.goal and self._is_met(self.goal):
            return "yes, with the goal"
        if not self.required:
            return "no"
        return "yes" if self._is_met(self.required) else "**no**"

    def _is_met(self, bound: str) -> bool:
        limit = float(bound.split()[1].replace(",", ""))
        return self.sense * self.value >= self.sense * limit


_ReadFigure = Callable[[Mapping[str, Any]], float]


def _case(delay: int, at_once: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return lambda d: dict(d["text"]["cases"][f"{delay} ms, {at_once} at once"][MOOTHALL])


def _wait_ratio(delay: int) -> _ReadFigure:
    return lambda d: float(_case(delay, 1)(d)["wait"] * 1000 / (d["text"]["phases"] * delay))


def _idle(d: Mapping[str, Any]) -> float:
    """Return the percentage of a core that an idle server uses, without the processes of Ray."""
    return 100.0 * sum(
        float(share) for part, share in d["text"]["idle_cpu"].items() if part != "ray"
    )


def _idle_memory(d: Mapping[str, Any]) -> float:
    """Return the PSS of all processes in megabytes."""
    return sum(map(float, d["held"]["idle"]["pss"].values()))


def _seat(d: Mapping[str, Any]) -> float:
    """Return the kilobytes of a seat that waits for its model, at the largest count."""
    last = d["held"]["steps"][-1]
    added = sum(last["pss"].values()) - sum(d["held"]["idle"]["pss"].values())
    return float(added * 1e6 / 1024 / 3 / last["count"])


def _graph(d: Mapping[str, Any]) -> float:
    """Return the CPU milliseconds that the projection into the graph adds to a deliberation."""
    figures = d["steps"]["projection"]
    return float(figures["with_ms"] - figures["without_ms"])


def _stream_ratio(d: Mapping[str, Any]) -> float:
    """Return the CPU time with replies in 64 chunks, divided by that with replies in one."""
    return float(d["steps"]["streamed"]["cpu_ms"]) / float(_case(50, 64)(d)["cpu_ms"])


def _model_error(d: Mapping[str, Any]) -> float:
    return 100 * max(abs(float(row["error"])) for row in d["scaling"]["rows"])


def _slowest(d: Mapping[str, Any]) -> float:
    return max(
        float(seconds) for name, seconds in d["commands"].items() if name.startswith("moothall ")
    )


_TARGETS: tuple[tuple[str, str, str, _ReadFigure, str, int], ...] = (
    (
        "deliberations a second, 64 at once, 50 ms",
        "≥ 150",
        "≥ 400",
        lambda d: float(_case(50, 64)(d)["rate"]),
        "",
        1,
    ),
    (
        "CPU of a deliberation in all processes, 64 at once",
        "≤ 10 ms",
        "≤ 2.5 ms",
        lambda d: float(_case(50, 64)(d)["cpu_ms"]),
        " ms",
        -1,
    ),
    ("wall time by critical path, 500 ms", "≤ 1.02", "≤ 1.005", _wait_ratio(500), "", -1),
    ("wall time by critical path, 50 ms", "≤ 1.10", "≤ 1.03", _wait_ratio(50), "", -1),
    ("CPU of an idle server without Ray, of a core", "", "≤ 1 %", _idle, " %", -1),
    ("memory of a seat that waits for its model", "≤ 100 KB", "", _seat, " KB", -1),
    (
        "start of a council, p50",
        "≤ 20 ms",
        "",
        lambda d: float(d["steps"]["start"]["p50"]),
        " ms",
        -1,
    ),
    (
        "overhead of the tool gateway, p50",
        "≤ 1 ms",
        "",
        lambda d: float(d["steps"]["gateway"]["p50"]),
        " ms",
        -1,
    ),
    ("tool call, p50", "≤ 2 ms", "", lambda d: float(d["steps"]["tool"]["p50"]), " ms", -1),
    (
        "block of Python that calls a tool, p50",
        "≤ 5 ms",
        "",
        lambda d: float(d["steps"]["python"]["p50"]),
        " ms",
        -1,
    ),
    (
        "tool calls a second in one workspace",
        "≥ 200",
        "",
        lambda d: float(d["steps"]["tools_a_second"]),
        "",
        1,
    ),
    (
        "start of a workspace with 5,000 files, p50",
        "≤ 100 ms",
        "",
        lambda d: float(d["steps"]["workspace"]["p50"]),
        " ms",
        -1,
    ),
    (
        "publishing an event, p50",
        "≤ 0.5 ms",
        "",
        lambda d: float(d["steps"]["publish"]["p50"]),
        " ms",
        -1,
    ),
    (
        "publishing an event, p99",
        "≤ 5 ms",
        "",
        lambda d: float(d["steps"]["publish"]["p99"]),
        " ms",
        -1,
    ),
    (
        "resumption after kill -9, from readiness",
        "≤ 1 s",
        "",
        lambda d: max(float(run["resume_seconds"]) for run in d["steps"]["recovery"]["runs"]),
        " s",
        -1,
    ),
    ("projection into the graph, CPU of a deliberation", "≤ 5 ms", "", _graph, " ms", -1),
    (
        "context from 100,000 nodes, embedded, p95",
        "≤ 100 ms",
        "",
        lambda d: float(d["contexts"]["stores"]["embedded"]["p95"]),
        " ms",
        -1,
    ),
    (
        "context from 100,000 nodes, Neo4j, p95",
        "≤ 100 ms",
        "",
        lambda d: float(d["contexts"]["stores"]["Neo4j"]["p95"]),
        " ms",
        -1,
    ),
    ("CPU with replies in 64 chunks, by that with one", "≤ 1.5", "", _stream_ratio, "", -1),
    ("largest error of the capacity model", "≤ 20 %", "", _model_error, " %", -1),
    (
        "`import moothall`",
        "≤ 0.2 s",
        "",
        lambda d: float(d["commands"]["import moothall"]),
        " s",
        -1,
    ),
    ("slowest command without Ray", "≤ 0.5 s", "", _slowest, " s", -1),
    (
        "report of an unreachable model server",
        "≤ 1 s",
        "",
        lambda d: float(d["commands"][UNREACHABLE]),
        " s",
        -1,
    ),
    (
        "report of a rejected API key",
        "≤ 1 s",
        "",
        lambda d: float(d["commands"][UNAUTHORIZED]),
        " s",
        -1,
    ),
    (
        "first event of `deliberate` with a remote model",
        "≤ 2 s",
        "",
        lambda d: float(d["commands"][FIRST_EVENT]),
        " s",
        -1,
    ),
    (
        "`moothall serve` is ready",
        "≤ 2.5 s",
        "≤ 1.5 s",
        lambda d: float(d["commands"][SERVE_READY]),
        " s",
        -1,
    ),
    (
        "`moothall list` of 10,000 tasks, while serving",
        "≤ 0.3 s",
        "≤ 0.2 s",
        lambda d: float(d["commands"][LISTED]),
        " s",
        -1,
    ),
    ("memory of an idle deployment without Ray", "≤ 250 MB", "≤ 150 MB", _idle_memory, " MB", -1),
)


def targets(document: Mapping[str, Any]) -> Iterator[Target]:
    """Yield the targets with a measured value."""
    for name, required, goal, read_figure, unit, sense in _TARGETS:
        try:
            value = read_figure(document)
        except KeyError:
            continue
        if math.isnan(value):
            continue
        yield Target(name, required, goal, value, unit, sense)
