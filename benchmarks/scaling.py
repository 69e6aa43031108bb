"""docs/scaling.md: the constants of the model of capacity, measured; what it says beside what
really came; what a day takes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.capacity import PHASES, Demand, Fleet, bound, hosts_for, simulate
from benchmarks.load import Run
from benchmarks.report import figure, table, with_rows
from benchmarks.results import PLACE
from benchmarks.spread import crowd, demand_of, may_slice, spread
from benchmarks.stub import running_stub

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_DELAY_MS = 50
_HOST, _SERVE, _BUS = 0.2, 0.6, 0.4
"""Cores: so little for a host that it is what the server waits for, and all of two nodes fits into
one machine of two cores.
"""
_CROWDS = (64, 16, 4)
_TURNS = 3
"""Of each server with each crowd, so that what else the machine does is the same for both."""
_A_DAY, _PEAK = 1_000_000, 5.0
_TOKENS, _SERVER_TOKENS = 400, 2_500
_RATE = _A_DAY / 86_400 * _PEAK
_BUSY = 0.7
_NODES = "## Workspaces on all nodes"
_WITH_TOOLS = "the same with tools and tests, on hosts' machines"


async def measure(
    folder: Path, *, seconds: float, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Take the constants from the first crowd on one node; hold the model against the others and
    against two nodes. Both servers stand, and take turns of `seconds` in all with each crowd.
    """
    if not may_slice():
        raise SystemExit(
            "scaling: parts get slices of a core by control groups, which needs root and a "
            "writable /sys/fs/cgroup"
        )
    fleets = {nodes: Fleet((_HOST,) * nodes, serve=_SERVE, bus=_BUS) for nodes in (1, 2)}
    runs: dict[tuple[int, int], list[Run]] = {}
    async with running_stub() as stub, AsyncExitStack() as stack:
        apps = {}
        for nodes, fleet in fleets.items():
            apps[nodes] = await stack.enter_async_context(spread(folder / str(nodes), stub, fleet))
            await crowd(apps[nodes], stub, delay_ms=0, at_once=8, seconds=2)
        for turn in range(1, _TURNS + 1):
            for at_once in _CROWDS:
                for nodes, app in apps.items():
                    run = await crowd(
                        app, stub, delay_ms=_DELAY_MS, at_once=at_once, seconds=seconds / _TURNS
                    )
                    runs.setdefault((nodes, at_once), []).append(run)
                    announce(
                        f"turn {turn} of {_TURNS}, {nodes} nodes, {at_once} at once: "
                        f"{run.rate:.1f} a second"
                    )
    demand = _middle([demand_of(run, _DELAY_MS) for run in runs[1, _CROWDS[0]]])
    rows = []
    for (nodes, at_once), received in sorted(
        runs.items(), key=lambda found: (found[0][0], -found[0][1])
    ):
        expected, rate = (
            simulate(demand, fleets[nodes], at_once),
            statistics.median(run.rate for run in received),
        )
        rows.append(
            {
                "nodes": nodes,
                "at_once": at_once,
                "rate": rate,
                "simulated": expected.rate,
                "bound": bound(demand, fleets[nodes], at_once),
                "wait": statistics.median(run.wait for run in received),
                "simulated_wait": expected.wait,
                "error": expected.rate / rate - 1,
            }
        )
    return {"demand": asdict(demand), "rows": rows}


def _middle(found: Sequence[Demand]) -> Demand:
    """Return the median of each part."""
    return Demand(
        **{
            name: statistics.median(asdict(each)[name] for each in found)
            for name in asdict(found[0])
        }
    )


def write(document: Mapping[str, Any], *, into_docs: bool) -> Path:
    """Write the page into docs/, or beside the results; return where it is.

    Where only deliberations with tools or workspaces on nodes were measured, their part alone is
    written anew.
    """
    path = (_DOCS if into_docs else PLACE.parent) / "scaling.md"
    old, _, nodes = (_DOCS / "scaling.md").read_text(encoding="utf-8").partition(_NODES)
    if "scaling" in document:
        found = document["scaling"]
        parts = (_head(found), _held(found), _day(document, Demand(**found["demand"])))
        page = "\n\n".join(parts) + "\n\n"
    elif "tools" in document:
        row = f"| {_WITH_TOOLS} | {cores_with_tools(document)} |"
        page = with_rows(old, {_WITH_TOOLS: row})
    else:
        page = old
    if "nodes" in document:
        nodes = _workspaces(document["nodes"])
    path.write_text(f"{page.rstrip()}\n\n{_NODES}{nodes}", encoding="utf-8")
    return path


def _workspaces(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{count} node{'s' if count != '1' else ''}",
            figure(statistics.median(waits)),
            ", ".join(figure(wait) for wait in waits),
        )
        for count, waits in found["waits"].items()
    ]
    frame = found["frame"]
    return f"""

Measured by `scripts/bench nodes` on {frame["date"]}: a council of {found["seats"]} with tools, each seat with two runs of the tests (about
a second of CPU each) besides the re-checks, with `workspace.kind = "ray"`. The sandboxes of each node share {found["cores"]:g} of a core by a
control group; the server and the host are not limited. Both clusters run on one machine of {frame["machine"]["cores"]} cores, and take
turns. The load of the machine over five minutes was {found["load"]:.1f} at the end, partly from other work; the control groups give the
measured processes priority.

{table(("", "median seconds of a council", "each"), rows)}

{found["factor"]:.1f} times as fast on four nodes.
"""


def _head(found: Mapping[str, Any]) -> str:
    demand, machine = found["demand"], found["frame"]["machine"]
    return f"""# Scaling

Written by `scripts/bench scaling` on {found["frame"]["date"]}: {machine["cores"]} cores ({machine["processor"]}), {machine["memory"]},
Python {machine["python"]} ({machine.get("build", "build unknown")}).

## The model

Each deliberation uses CPU time of each part, and a part that is one process handles one thing at a time. Therefore a server handles
at most

```text
min(1 / serve, hosts / host, 1 / bus, at once / one alone)
```

deliberations a second. `serve`, `host` and `bus` are the CPU seconds that one deliberation uses in that part. A simulation of the
queues (`benchmarks/capacity.py`) computes the waiting times below these bounds. The constants are for {PHASES} phases with three calls each
on text, with every part in a slice of a core:

{table(("", "CPU ms a deliberation"), [("serve: dependencies, collector", figure(demand["serve_ms"])), ("host: seats, facts", figure(demand["host_ms"])), ("bus", figure(demand["bus_ms"]))])}

They are higher than those of [benchmarks.md](benchmarks.md), because a part in a small slice wakes up more often for less work."""


def _held(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{row['nodes']} node{'s' if row['nodes'] > 1 else ''}, {row['at_once']} at once",
            figure(row["rate"]),
            figure(row["simulated"]),
            f"{100 * row['error']:+.0f} %",
            figure(row["bound"]),
            figure(row["wait"] * 1000),
            figure(row["simulated_wait"] * 1000),
        )
        for row in found["rows"]
    ]
    head = ("", "a second", "simulated", "off by", "bound", "median ms", "simulated ms")
    return f"""## Model and measurement

Two Ray clusters, one of one node and one of two, with a host on each node. Control groups limit a host to {_HOST:g} of a core, serve to
{_SERVE:g} and the bus to {_BUS:g}, so that everything fits on one machine and the hosts are the bottleneck. Both clusters run at the same time and
take {_TURNS} turns with each number of callers. Figures are medians. The constants are measured only in the first line.

{table(head, rows)}"""


def _day(document: Mapping[str, Any], demand: Demand) -> str:
    rate = _RATE
    graph = _graph_ms(document)
    rows = [
        (
            "serve, without the graph",
            (
                f"{rate * demand.serve_ms / 1000:.2f} of a core; one process takes "
                f"{1000 / demand.serve_ms:,.0f} a second"
            ),
        ),
        (
            "the graph behind it",
            f"{rate * graph / 1000:.2f} of a core" if graph else "not measured",
        ),
        (
            "hosts",
            (
                f"{rate * demand.host_ms / 1000:.2f} cores: "
                f"{hosts_for(demand, rate, busy=_BUSY):.2f} hosts at {_BUSY:.0%} of their time"
            ),
        ),
        ("bus", f"{rate * demand.bus_ms / 1000:.2f} of a core"),
        (
            "model servers",
            (
                f"{rate * 9 * _TOKENS:,.0f} tokens a second: "
                f"{rate * 9 * _TOKENS / _SERVER_TOKENS:,.0f} servers that write {_SERVER_TOKENS:,} "
                "each"
            ),
        ),
    ]
    if "tools" in document:
        rows.append((_WITH_TOOLS, cores_with_tools(document)))
    return f"""## What {_A_DAY:,} a day take

{_A_DAY / 86_400:.1f} a second on average; planned for a peak {_PEAK:g} times that, {rate:.0f} a second, nine calls each and {_TOKENS} tokens an answer:

{table(("", "at the peak"), rows)}

Tools and tests: by the CPU of one deliberation alone, and of several at once ([benchmarks](benchmarks.md#with-tools)).
Most of the cost of a day is model servers, followed by the tests that a council runs; Moothall itself uses a small part of one machine.
Additional hosts (`ray.hosts`, one Ray node each) need no further configuration, because they pull work. If {1000 / demand.serve_ms:,.0f} a second are not
enough, distribute the roles of serve over several processes ([operating](operating.md#processes-by-role)), with any number of API
servers and collectors; the graph has one writer."""


def cores_with_tools(document: Mapping[str, Any]) -> str:
    """Return the cores that deliberations with tools take at the peak, run alone and together."""
    runs = [document["tools"][name]["cpu_ms"] / 1000 for name in ("alone", "together")]
    if any(math.isnan(seconds) for seconds in runs):
        return "not measured"
    return (
        " to ".join(dict.fromkeys(f"{_RATE * seconds:,.0f}" for seconds in sorted(runs))) + " cores"
    )


def _graph_ms(document: Mapping[str, Any]) -> float:
    received = document.get("steps", {}).get("projected", {})
    return float(received["with_ms"] - received["without_ms"]) if received else 0.0
