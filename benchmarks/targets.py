"""What the design asks for, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.commands import FIRST, LISTED, NOBODY, READY, REFUSED
from benchmarks.contest import OURS


@dataclass(frozen=True, slots=True)
class Target:
    """One line. `sense` is 1 where more is better, -1 where less is."""

    what: str
    must: str
    aim: str
    value: float
    unit: str
    sense: int

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.aim and self._met(self.aim):
            return "yes, the aim too"
        if not self.must:
            return "no"
        return "yes" if self._met(self.must) else "**no**"

    def _met(self, bound: str) -> bool:
        wanted = float(bound.split()[1].replace(",", ""))
        return self.sense * self.value >= self.sense * wanted


_Read = Callable[[Mapping[str, Any]], float]


def _case(delay: int, at_once: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return lambda d: dict(d["text"]["cases"][f"{delay} ms, {at_once} at once"][OURS])


def _over(delay: int) -> _Read:
    return lambda d: float(_case(delay, 1)(d)["wait"] * 1000 / (d["text"]["phases"] * delay))


def _idle(d: Mapping[str, Any]) -> float:
    """Percent of a core that the server uses while it has nothing to do, beside Ray's own
    processes.
    """
    return 100.0 * sum(
        float(share) for part, share in d["text"]["idle_cpu"].items() if part != "ray"
    )


def _idle_memory(d: Mapping[str, Any]) -> float:
    """Megabytes of all processes, each shared page in equal parts."""
    return sum(map(float, d["growth"]["idle"]["pss"].values())) / 1e6


def _seat(d: Mapping[str, Any]) -> float:
    """Kilobytes of a seat that waits for its model, at the largest count."""
    last = d["growth"]["steps"][-1]
    more = sum(last["pss"].values()) - sum(d["growth"]["idle"]["pss"].values())
    return float(more * 1e6 / 1024 / 3 / last["count"])


def _graph(d: Mapping[str, Any]) -> float:
    """CPU milliseconds that the graph adds to a deliberation, behind the answers."""
    received = d["steps"]["projected"]
    return float(received["with_ms"] - received["without_ms"])


def _pieces(d: Mapping[str, Any]) -> float:
    """The cost of answers in 64 pieces over that of whole ones."""
    return float(d["steps"]["streamed"]["cpu_ms"]) / float(_case(50, 64)(d)["cpu_ms"])


def _scaled(d: Mapping[str, Any]) -> float:
    return 100 * max(abs(float(row["error"])) for row in d["scaling"]["rows"])


def _slowest(d: Mapping[str, Any]) -> float:
    return max(
        float(seconds) for name, seconds in d["commands"].items() if name.startswith("moothall ")
    )


_LINES: tuple[tuple[str, str, str, _Read, str, int], ...] = (
    (
        "deliberations a second, 64 at once, 50 ms",
        "≥ 150",
        "≥ 400",
        lambda d: float(_case(50, 64)(d)["rate"]),
        "",
        1,
    ),
    (
        "CPU of one over all processes, 64 at once",
        "≤ 10 ms",
        "≤ 2.5 ms",
        lambda d: float(_case(50, 64)(d)["cpu_ms"]),
        " ms",
        -1,
    ),
    ("wall over critical path, 500 ms", "≤ 1.02", "≤ 1.005", _over(500), "", -1),
    ("wall over critical path, 50 ms", "≤ 1.10", "≤ 1.03", _over(50), "", -1),
    ("idle, beside Ray's own, of a core", "", "≤ 1 %", _idle, " %", -1),
    ("a seat that waits for its model", "≤ 100 KB", "", _seat, " KB", -1),
    (
        "a council placed, p50",
        "≤ 20 ms",
        "",
        lambda d: float(d["steps"]["placed"]["p50"]),
        " ms",
        -1,
    ),
    (
        "guard of a tool call, p50",
        "≤ 1 ms",
        "",
        lambda d: float(d["steps"]["guard"]["p50"]),
        " ms",
        -1,
    ),
    ("tool round trip, p50", "≤ 2 ms", "", lambda d: float(d["steps"]["tool"]["p50"]), " ms", -1),
    (
        "block of Python that calls a tool, p50",
        "≤ 5 ms",
        "",
        lambda d: float(d["steps"]["python"]["p50"]),
        " ms",
        -1,
    ),
    (
        "tool calls a second, one workspace",
        "≥ 200",
        "",
        lambda d: float(d["steps"]["tools_a_second"]),
        "",
        1,
    ),
    (
        "workspace ready, 5,000 files, p50",
        "≤ 100 ms",
        "",
        lambda d: float(d["steps"]["workspace"]["p50"]),
        " ms",
        -1,
    ),
    (
        "event persisted, p50",
        "≤ 0.5 ms",
        "",
        lambda d: float(d["steps"]["persisted"]["p50"]),
        " ms",
        -1,
    ),
    (
        "event persisted, p99",
        "≤ 5 ms",
        "",
        lambda d: float(d["steps"]["persisted"]["p99"]),
        " ms",
        -1,
    ),
    (
        "resume after kill -9 of everything, from being ready",
        "≤ 1 s",
        "",
        lambda d: max(float(run["seconds"]) for run in d["steps"]["resumed"]["runs"]),
        " s",
        -1,
    ),
    ("the graph behind a deliberation, CPU", "≤ 5 ms", "", _graph, " ms", -1),
    (
        "a pack, 100,000 nodes, embedded, p95",
        "≤ 100 ms",
        "",
        lambda d: float(d["packs"]["stores"]["embedded"]["p95"]),
        " ms",
        -1,
    ),
    (
        "a pack, 100,000 nodes, Neo4j, p95",
        "≤ 100 ms",
        "",
        lambda d: float(d["packs"]["stores"]["Neo4j"]["p95"]),
        " ms",
        -1,
    ),
    ("answers in 64 pieces over whole ones, CPU", "≤ 1.5", "", _pieces, "", -1),
    ("the model of capacity, off by at most", "≤ 20 %", "", _scaled, " %", -1),
    (
        "`import moothall`",
        "≤ 0.2 s",
        "",
        lambda d: float(d["commands"]["import moothall"]),
        " s",
        -1,
    ),
    ("the slowest command that needs no Ray", "≤ 0.5 s", "", _slowest, " s", -1),
    (
        "a model server that is away, said after",
        "≤ 1 s",
        "",
        lambda d: float(d["commands"][NOBODY]),
        " s",
        -1,
    ),
    (
        "a key that is refused, said after",
        "≤ 1 s",
        "",
        lambda d: float(d["commands"][REFUSED]),
        " s",
        -1,
    ),
    (
        "first event of `deliberate` with a remote model",
        "≤ 2 s",
        "",
        lambda d: float(d["commands"][FIRST]),
        " s",
        -1,
    ),
    (
        "`moothall serve` is ready",
        "≤ 2.5 s",
        "≤ 1.5 s",
        lambda d: float(d["commands"][READY]),
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
    """Every line that something was measured for."""
    for what, must, aim, read, unit, sense in _LINES:
        try:
            value = read(document)
        except KeyError:
            continue
        if math.isnan(value):
            continue
        yield Target(what, must, aim, value, unit, sense)
