"""Write docs/scaling.md: the measured constants of the capacity model, a comparison of the model with
measurements, and the resources for a million deliberations a day.
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
from benchmarks.distributed_server import (
    can_limit_cores,
    demand_of,
    measure_load,
    run_distributed_server,
)
from benchmarks.load import Run
from benchmarks.report import format_figure, format_table, replace_rows
from benchmarks.results import RESULTS_FILE
from benchmarks.stub import running_stub

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_DELAY_MS = 50
_HOST, _SERVE, _BUS = 0.2, 0.6, 0.4
"""Cores. A host has so little that it is the bottleneck, and two nodes fit on two cores."""
_CALLER_COUNTS = (64, 16, 4)
_ROUNDS = 3
"""The rounds of both servers and all numbers of callers, so that the load is the same for both."""
_DELIBERATIONS_A_DAY, _PEAK_FACTOR = 1_000_000, 5.0
_TOKENS, _SERVER_TOKENS = 400, 2_500
_PEAK_RATE = _DELIBERATIONS_A_DAY / 86_400 * _PEAK_FACTOR
_BUSY = 0.7
_NODES_HEADING = "## Workspaces on all nodes"
_TOOLS_ROW = "tools and tests, on the machines of hosts"


async def measure(
    folder: Path, *, seconds: float, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the constants with the first number of callers on one node, and compare the model with
    the other measurements.

    Both servers run at the same time, and are measured in turn. seconds: the total time of each
    server with each number of callers.
    """
    if not can_limit_cores():
        raise SystemExit(
            "the part scaling limits cores with control groups: it needs root and a writable "
            "/sys/fs/cgroup"
        )
    fleets = {nodes: Fleet((_HOST,) * nodes, serve=_SERVE, bus=_BUS) for nodes in (1, 2)}
    runs: dict[tuple[int, int], list[Run]] = {}
    async with running_stub() as stub, AsyncExitStack() as stack:
        apps = {}
        for nodes, fleet in fleets.items():
            apps[nodes] = await stack.enter_async_context(
                run_distributed_server(folder / str(nodes), stub, fleet)
            )
            await measure_load(apps[nodes], stub, delay_ms=0, at_once=8, seconds=2)
        for number in range(1, _ROUNDS + 1):
            for at_once in _CALLER_COUNTS:
                for nodes, app in apps.items():
                    run = await measure_load(
                        app, stub, delay_ms=_DELAY_MS, at_once=at_once, seconds=seconds / _ROUNDS
                    )
                    runs.setdefault((nodes, at_once), []).append(run)
                    announce(
                        f"round {number} of {_ROUNDS}, {nodes} nodes, {at_once} at once: "
                        f"{run.rate:.1f} a second"
                    )
    demand = _median_demand([demand_of(run, _DELAY_MS) for run in runs[1, _CALLER_COUNTS[0]]])
    rows = []
    for (nodes, at_once), measured in sorted(
        runs.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        simulated = simulate(demand, fleets[nodes], at_once)
        rate = statistics.median(run.rate for run in measured)
        rows.append(
            {
                "nodes": nodes,
                "at_once": at_once,
                "rate": rate,
                "simulated": simulated.rate,
                "bound": bound(demand, fleets[nodes], at_once),
                "wait": statistics.median(run.wait for run in measured),
                "simulated_wait": simulated.wait,
                "error": simulated.rate / rate - 1,
            }
        )
    return {"demand": asdict(demand), "rows": rows}


def _median_demand(demands: Sequence[Demand]) -> Demand:
    """Return the median of each field."""
    return Demand(
        **{
            name: statistics.median(asdict(each)[name] for each in demands)
            for name in asdict(demands[0])
        }
    )


def write(document: Mapping[str, Any], *, into_docs: bool) -> Path:
    """Write the page into docs/, or next to the results, and return its path.

    Without a new measurement of the model, only the row on tools and the section on nodes change.
    """
    path = (_DOCS if into_docs else RESULTS_FILE.parent) / "scaling.md"
    old, _, nodes = (_DOCS / "scaling.md").read_text(encoding="utf-8").partition(_NODES_HEADING)
    if "scaling" in document:
        results = document["scaling"]
        parts = (
            _head(results),
            _comparison(results),
            _day(document, Demand(**results["demand"])),
        )
        page = "\n\n".join(parts) + "\n\n"
    elif "tools" in document:
        row = f"| {_TOOLS_ROW} | {cores_with_tools(document)} |"
        page = replace_rows(old, {_TOOLS_ROW: row})
    else:
        page = old
    if "nodes" in document:
        nodes = _workspaces(document["nodes"])
    path.write_text(f"{page.rstrip()}\n\n{_NODES_HEADING}{nodes}", encoding="utf-8")
    return path


def _workspaces(results: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{count} node{'s' if count != '1' else ''}",
            format_figure(statistics.median(waits)),
            ", ".join(format_figure(wait) for wait in waits),
        )
        for count, waits in results["waits"].items()
    ]
    run_info = results["run"]
    return f"""

Measured by `scripts/bench nodes` on {run_info["date"]}: a council of {results["seats"]} with tools, each seat with two runs of the tests (about
a second of CPU each) and the re-checks, with `workspace.kind = "ray"`. The sandboxes of each node share {results["cores"]:g} of a core by a
control group; the server and the host are not limited. Both clusters run on one machine of {run_info["machine"]["cores"]} cores, and are
measured in turn. The load of the machine over five minutes was {results["load"]:.1f} at the end, partly from other processes; the control groups give the
measured processes priority.

{format_table(("", "median seconds of a council", "each"), rows)}

On four nodes, a council is {results["factor"]:.1f} times as fast.
"""


def _head(results: Mapping[str, Any]) -> str:
    demand, machine = results["demand"], results["run"]["machine"]
    return f"""# Scaling

Written by `scripts/bench scaling` on {results["run"]["date"]}: {machine["cores"]} cores ({machine["processor"]}), {machine["memory"]},
Python {machine["python"]} ({machine.get("build", "build unknown")}).

## The model

Each deliberation uses CPU time of each part, and a part that is one process handles one thing at a time. Therefore a server handles
at most

```text
min(1 / serve, hosts / host, 1 / bus, at once / single)
```

deliberations a second. `serve`, `host` and `bus` are the CPU seconds that one deliberation uses in that part. A simulation of the
queues (`benchmarks/capacity.py`) computes the waiting times below these bounds. The constants are for {PHASES} phases with three calls each
on text, with every part limited to a fraction of a core:

{format_table(("", "CPU ms a deliberation"), [("serve: APIs, collector", format_figure(demand["serve_ms"])), ("host: seats, events", format_figure(demand["host_ms"])), ("bus", format_figure(demand["bus_ms"]))])}

They are higher than those of [benchmarks.md](benchmarks.md), because a part with a low limit wakes up more often for less work."""


def _comparison(results: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{row['nodes']} node{'s' if row['nodes'] > 1 else ''}, {row['at_once']} at once",
            format_figure(row["rate"]),
            format_figure(row["simulated"]),
            f"{100 * row['error']:+.0f} %",
            format_figure(row["bound"]),
            format_figure(row["wait"] * 1000),
            format_figure(row["simulated_wait"] * 1000),
        )
        for row in results["rows"]
    ]
    head = ("", "a second", "simulated", "error", "bound", "median ms", "simulated ms")
    return f"""## Model and measurement

Two Ray clusters, one of one node and one of two, with a host on each node. Control groups limit a host to {_HOST:g} of a core, serve to
{_SERVE:g} and the bus to {_BUS:g}, so that everything fits on one machine and the hosts are the bottleneck. Both clusters run at the same time and
are measured {_ROUNDS} times with each number of callers. Figures are medians. The constants are measured only in the first row.

{format_table(head, rows)}"""


def _day(document: Mapping[str, Any], demand: Demand) -> str:
    rate = _PEAK_RATE
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
            "projection into the graph",
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
                f"{rate * 9 * _TOKENS / _SERVER_TOKENS:,.0f} servers with {_SERVER_TOKENS:,} "
                "each"
            ),
        ),
    ]
    if "tools" in document:
        rows.append((_TOOLS_ROW, cores_with_tools(document)))
    return f"""## Resources for {_DELIBERATIONS_A_DAY:,} a day

{_DELIBERATIONS_A_DAY / 86_400:.1f} deliberations a second on average. The peak is {_PEAK_FACTOR:g} times the average: {rate:.0f} a second, with nine calls each and {_TOKENS} tokens a reply:

{format_table(("", "at the peak"), rows)}

The range for tools and tests is that of sequential and concurrent deliberations ([benchmarks](benchmarks.md#with-tools)).
Most of the cost is model servers, followed by the tests of the councils; Moothall itself uses a small part of one machine.
Additional hosts (`ray.hosts`, one Ray node each) need no further configuration, because they pull work. If {1000 / demand.serve_ms:,.0f} a second are not
enough, distribute the roles of serve over several processes ([operating](operating.md#processes-by-role)), with any number of API
servers and collectors; the graph has one writer."""


def cores_with_tools(document: Mapping[str, Any]) -> str:
    """Return the cores for deliberations with tools at the peak, sequential and concurrent."""
    runs = [document["tools"][name]["cpu_ms"] / 1000 for name in ("single", "concurrent")]
    if any(math.isnan(seconds) for seconds in runs):
        return "not measured"
    return (
        " to ".join(dict.fromkeys(f"{_PEAK_RATE * seconds:,.0f}" for seconds in sorted(runs)))
        + " cores"
    )


def _graph_ms(document: Mapping[str, Any]) -> float:
    figures = document.get("steps", {}).get("projection", {})
    return float(figures["with_ms"] - figures["without_ms"]) if figures else 0.0
