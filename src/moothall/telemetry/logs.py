"""Structured logs on stderr. Use: `log = telemetry.get_logger(__name__); log.info("seat started",
task_id=…)`.

structlog is imported with the first line, so that commands that log nothing start faster.
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
from moothall.domain.text import scrub
from moothall.telemetry.spans import log_context

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger


@dataclass(frozen=True, eq=False, slots=True)
class _LogTarget:
    """The level and format of lines, and their file (None: stderr)."""

    settings: LogSettings
    file: Path | None = None


_target = _LogTarget(LogSettings())
_task_target: ContextVar[_LogTarget | None] = ContextVar("moothall_log", default=None)
_secrets: tuple[str, ...] = ()


def configure_logs(
    settings: LogSettings, file: Path | None = None, secrets: Sequence[str] = ()
) -> None:
    """Configure the logs of this process: text or JSON lines, on stderr or in a file.

    secrets: values that are removed from all lines, like texts in the shape of a secret.
    """
    global _target, _secrets
    _target, _secrets = _LogTarget(settings, file), tuple(secrets)


def log_apart(settings: LogSettings, file: Path) -> None:
    """Write the lines of this asyncio task, and of those that it starts, to a file of their own."""
    _task_target.set(_LogTarget(settings, file))


class Stderr:
    """Standard error at the time of writing. Tests and libraries may replace and close it."""

    def write(self, text: str) -> int:
        """Write."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush."""
        sys.stderr.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return sys.stderr.isatty()


class _LogFile:
    """A file that is opened for each line, so that a host that ends leaves nothing open."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def write(self, text: str) -> int:
        """Append a line."""
        with self._path.open("a", encoding="utf-8") as file:
            return file.write(text)

    def flush(self) -> None:
        """Do nothing: each line is written at once."""

    def isatty(self) -> bool:
        """Return False."""
        return False


def _sink(file: Path | None) -> TextIO:
    return cast("TextIO", Stderr() if file is None else _LogFile(file))


def _add_context(_logger: WrappedLogger, _method: str, values: EventDict) -> EventDict:
    """Add the task, seat and trace of the running code."""
    for name, value in log_context().items():
        values.setdefault(name, value)
    return values


def _remove_secrets(_logger: WrappedLogger, _method: str, line: Any) -> str:
    """Remove secrets from a line: from its values, its text and a traceback."""
    return scrub(str(line), _secrets)


class Logger:
    """A logger that adds the name of its module to each line."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._loggers: dict[_LogTarget, FilteringBoundLogger] = {}

    @property
    def _bound(self) -> FilteringBoundLogger:
        target = _task_target.get() or _target
        if target not in self._loggers:
            self._loggers[target] = self._create(target)
        return self._loggers[target]

    def _create(self, target: _LogTarget) -> FilteringBoundLogger:
        import structlog

        text = target.settings.format == "text"
        sink = _sink(target.file)
        logger: FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(sink),
            processors=[
                _add_context,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.dev.ConsoleRenderer(colors=sink.isatty())
                if text
                else structlog.processors.JSONRenderer(),
                _remove_secrets,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(
                getattr(logging, target.settings.level.upper())
            ),
            module=self._module,
        )
        return logger

    def debug(self, event: str, **values: Any) -> None:
        """Log a detail for developers."""
        self._bound.debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event."""
        self._bound.info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """Log something that a person should look at."""
        self._bound.warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        """Log a failure."""
        self._bound.error(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        """Log a failure with the exception that is being handled."""
        self._bound.exception(event, **values)


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name.removeprefix("moothall."))
