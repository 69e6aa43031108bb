"""Logs, spans and metrics. All packages use this one.

    log = telemetry.get_logger(__name__)
    with telemetry.span("turn", {"moothall.turn": 1}) as span: ...
    telemetry.metrics.TOOL_CALLS.add("files.read", "success")

OpenTelemetry and prometheus_client are imported when they are first used. With the exporter off, a
span is a function call that returns a constant, and a metric is an addition in a dictionary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from moothall.config import TraceSettings
from moothall.telemetry import metrics
from moothall.telemetry.tracing import (
    Span,
    bound,
    bound_values,
    configure_logs,
    get_logger,
    headers,
    is_recording,
    log_apart,
    read_traceparent,
    span,
    traceparent,
    wants_content,
)

__all__ = [
    "Span",
    "bound",
    "bound_values",
    "configure_logs",
    "get_logger",
    "headers",
    "is_recording",
    "log_apart",
    "metrics",
    "read_traceparent",
    "record",
    "span",
    "traceparent",
    "wants_content",
]


def record(
    settings: TraceSettings, process: str, secrets: Sequence[str] = ()
) -> AbstractAsyncContextManager[None]:
    """Record this process's spans until the context ends, if an exporter is set. Raises
    `ConfigurationError`.
    """
    if settings.exporter == "off":
        return nullcontext()
    from moothall.telemetry.recording import recording

    return recording(settings, f"{process}-{os.getpid()}", secrets=secrets)
