"""What the house says of itself: logs, spans and figures. The only way in which any room does so.

    log = telemetry.get_logger(__name__)
    with telemetry.span("turn", {"moothall.turn": 1}) as span: ...
    telemetry.metrics.TOOL_CALLS.add("files.read", "success")

Nothing here imports OpenTelemetry, prometheus_client or structlog before it is used: with the exporter off, a span is
a function call that returns a constant, and a figure is an addition in a dictionary.
"""

from __future__ import annotations

from moothall.telemetry import metrics
from moothall.telemetry.context import bound
from moothall.telemetry.logs import Logger, configure_logs, get_logger, log_apart
from moothall.telemetry.spans import Span, headers, read_traceparent, record, span, traceparent, wants_content

__all__ = [
    "Logger",
    "Span",
    "bound",
    "configure_logs",
    "get_logger",
    "headers",
    "log_apart",
    "metrics",
    "read_traceparent",
    "record",
    "span",
    "traceparent",
    "wants_content",
]
