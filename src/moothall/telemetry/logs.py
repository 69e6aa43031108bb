"""Structured logs on stderr. Use: `log = telemetry.get_logger(__name__); log.info("seat started",
task_id=…)`.

structlog is imported with the first line that is logged: commands that log nothing start faster.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from moothall.config import LogSettings
from moothall.domain.secrets import scrub
from moothall.telemetry.context import place

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger


@dataclass(frozen=True, eq=False, slots=True)
class _Way:
    """How lines are written: which, in which form, and to what file; None: stderr."""

    settings: LogSettings
    file: Path | None = None


_way = _Way(LogSettings())
_own: ContextVar[_Way | None] = ContextVar("moothall_log", default=None)
_secrets: tuple[str, ...] = ()


def configure_logs(
    settings: LogSettings, file: Path | None = None, secrets: Sequence[str] = ()
) -> None:
    """Say how this process logs from now on: as text for people or JSON lines for programs, on
    stderr or to a file.

    `secrets` are the operator's own values, which no line holds, as no line holds what has the
    shape of one.
    """
    global _way, _secrets
    _way, _secrets = _Way(settings, file), tuple(secrets)


def log_apart(settings: LogSettings, file: Path) -> None:
    """From now on, write the lines of this task, and of those that it starts, to a file of their
    own.
    """
    _own.set(_Way(settings, file))


class Stderr:
    """Standard error as it is when a line is written: whoever replaced and closed it meanwhile must
    fail no caller.
    """

    def write(self, text: str) -> int:
        """Write."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush."""
        sys.stderr.flush()

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return sys.stderr.isatty()


def _sink(file: Path | None) -> TextIO:
    if file is None:
        return cast("TextIO", Stderr())
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("a", encoding="utf-8", buffering=1)


def _say_where(_logger: WrappedLogger, _method: str, values: EventDict) -> EventDict:
    """Add the task, the seat and the trace that the line is about. Looked up only when a line is
    written.
    """
    for name, value in place().items():
        values.setdefault(name, value)
    return values


def _keep_secrets(_logger: WrappedLogger, _method: str, line: Any) -> str:
    """Take secrets out of the line, as it is about to be written: its values, its words, a
    traceback.
    """
    return scrub(str(line), _secrets)


class Logger:
    """Says where its lines are from."""

    def __init__(self, room: str) -> None:
        self._room = room
        self._made: dict[_Way, FilteringBoundLogger] = {}

    @property
    def _bound(self) -> FilteringBoundLogger:
        way = _own.get() or _way
        if way not in self._made:
            self._made[way] = self._make(way)
        return self._made[way]

    def _make(self, way: _Way) -> FilteringBoundLogger:
        import structlog

        text = way.settings.format == "text"
        sink = _sink(way.file)
        logger: FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(sink),
            processors=[
                _say_where,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.dev.ConsoleRenderer(colors=sink.isatty())
                if text
                else structlog.processors.JSONRenderer(),
                _keep_secrets,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(
                getattr(logging, way.settings.level.upper())
            ),
            room=self._room,
        )
        return logger

    def debug(self, event: str, **values: Any) -> None:
        """Log what only a developer wants to see."""
        self._bound.debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        """Log what happened."""
        self._bound.info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """Log what somebody should look at."""
        self._bound.warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        """Log what went wrong."""
        self._bound.error(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        """Log what went wrong, with the exception that is being handled."""
        self._bound.exception(event, **values)


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name.removeprefix("moothall."))
