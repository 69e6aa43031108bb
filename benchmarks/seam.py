"""What telemetry costs where it is off, and where it is on: microseconds a span and a figure, on
one core.

`python benchmarks/seam.py`
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

_TIMES = 50_000
_CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _span() -> None:
    with telemetry.span(
        "chat", {"gen_ai.operation.name": "chat", "moothall.seat": "agent-dev-001"}, kind="client"
    ) as span:
        span.set({"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 100})


def _timed() -> None:
    with BUS_PUBLISH_SECONDS.time("log"):
        pass


def _measure(what: str, act: Callable[[], object]) -> None:
    best = min(timeit.repeat(act, number=_TIMES, repeat=3))
    print(f"{what:45} {best / _TIMES * 1e6:8.2f} µs")


async def _main() -> None:
    _measure("a span, exporter off", _span)
    with telemetry.span("call", parent=_CALLER):
        _measure("a span, exporter off, a caller's trace", _span)
    _measure("a counter", lambda: TOOL_CALLS.add("files.read", "success"))
    _measure("a histogram, timed", _timed)
    _measure(
        "a cause",
        lambda: cause_of(EventType.SEAT_TURN, TaskKey("task-1"), "agent-dev-001/propose/0.1", {}),
    )
    try:
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from moothall.telemetry.recording import recording
    except ImportError:
        return
    async with recording(TraceSettings(), "benchmark", exporter=InMemorySpanExporter()):
        _measure("a span, recorded", _span)
    async with recording(
        TraceSettings(sample_ratio=0), "benchmark", exporter=InMemorySpanExporter()
    ):
        _measure("a span, exporter on, not sampled", _span)


if __name__ == "__main__":
    asyncio.run(_main())
