"""Structured logs on stderr. Use: `log = telemetry.get_logger(__name__); log.info("seat started", task_id=…)`."""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog

from moothall.config import Log


def configure_logs(settings: Log) -> None:
    """Send this process's logs to stderr, as text for people or JSON lines for programs."""
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that says where it is from."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(room=name.removeprefix("moothall.")))
