"""Logs, traces and metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from moothall.config.section import Section


class LogSettings(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum severity of log lines"
    )
    format: Literal["text", "json"] = Field(
        "text", description="text for people, or one JSON object per line"
    )


class TraceSettings(Section):
    """The export of OpenTelemetry spans. See docs/telemetry.md."""

    exporter: Literal["off", "otlp", "console"] = Field(
        "off", description="otlp: gRPC to endpoint; console: JSON lines on stderr"
    )
    endpoint: str = Field(
        "http://127.0.0.1:4317",
        pattern="^https?://",
        description="OTLP over gRPC; https:// for a collector elsewhere",
    )
    headers: SecretStr | None = Field(
        None, description="sent with every export: name=value,name=value"
    )
    service: str = Field("moothall", description="service.name of the spans")
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the traces started here that is recorded; for other traces, the "
        "caller's flag decides",
    )
    content: bool = Field(False, description="record prompts and answers too, without secrets")


class MetricsSettings(Section):
    """Metrics for Prometheus, at http://host:port/metrics of `moothall serve`."""

    enabled: bool = Field(default=True, description="serve metrics")
    host: str = Field("127.0.0.1", description="non-loopback addresses require metrics.token")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 9464, or none if it is in use; a port that is set must be free; 0: "
        "any free port",
    )
    token: SecretStr | None = Field(None, description="bearer token that scrapers must send")
