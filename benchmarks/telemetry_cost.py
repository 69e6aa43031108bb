"""Measure the cost of telemetry, disabled and enabled: microseconds for each span and metric on one
core.

`python benchmarks/telemetry_cost.py`
"""

from __future__ import annotations

import asyncio
import timeit
from collections.abc import Callable

from moothall import telemetry
from moothall.config import TraceSettings
from moothall.domain.event import EventType, cause_of
from moothall.domain.ids import TaskKey
from moothall.telemetry.metrics import BUS_PUBLISH_SECONDS, TOOL_CALLS

_REPETITIONS = 50_000
_CALLER_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _record_span() -> None:
    with telemetry.span(
        "chat", {"gen_ai.operation.name": "chat", "moothall.seat": "agent-dev-001"}, kind="client"
    ) as span:
        span.set({"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 100})


def _time_publish() -> None:
    with BUS_PUBLISH_SECONDS.time("log"):
        pass


def _measure(name: str, operation: Callable[[], object]) -> None:
    best = min(timeit.repeat(operation, number=_REPETITIONS, repeat=3))
    print(f"{name:45} {best / _REPETITIONS * 1e6:8.2f} µs")


async def _main() -> None:
    _measure("a span, exporter off", _record_span)
    with telemetry.span("call", parent=_CALLER_TRACE):
        _measure("a span, exporter off, a caller's trace", _record_span)
    _measure("a counter", lambda: TOOL_CALLS.add("files.read", "success"))
    _measure("a histogram, timed", _time_publish)
    _measure(
        "a cause",
        lambda: cause_of(EventType.SEAT_TURN, TaskKey("task-1"), "agent-dev-001/propose/0.1", {}),
    )
    try:
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
            InMemorySpanExporter,
        )

        from moothall.telemetry.recording import recording
    except ImportError:
        return
    async with recording(TraceSettings(), "benchmark", exporter=InMemorySpanExporter()):
        _measure("a span, recorded", _record_span)
    async with recording(
        TraceSettings(sample_ratio=0), "benchmark", exporter=InMemorySpanExporter()
    ):
        _measure("a span, exporter on, not sampled", _record_span)


if __name__ == "__main__":
    asyncio.run(_main())
