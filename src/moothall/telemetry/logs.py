"""Structured logs on stderr. Use: `log = telemetry.get_logger(__name__); log.info("seat started",
task_id=…)`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

from moothall.config import LogSettings
from moothall.domain.text import scrub
from moothall.telemetry.spans import log_context


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


_LEVELS = ("debug", "info", "warning", "error")
_COLOURS = {"debug": "32", "info": "32", "warning": "33", "error": "31"}
_NEEDS_QUOTES = frozenset(" \t\r\n=\"'")


def _format(level: str, event: str, values: Mapping[str, Any], *, colours: bool) -> str:
    """Return a line of text for people."""

    def style(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colours else text

    exception = values.get("exception", "")
    pairs = [
        f"{style('36', name)}={style('35', _show(value))}"
        for name, value in sorted(values.items())
        if name not in {"timestamp", "exception"}
    ]
    head = f"{style('2', values['timestamp'])} [{style(_COLOURS[level], f'{level:<9}')}]"
    line = " ".join((head, style("1", f"{event:<30}"), *pairs))
    return f"{line}\n{exception}" if exception else line


def _show(value: object) -> str:
    return value if isinstance(value, str) and not _NEEDS_QUOTES & set(value) else repr(value)


class Logger:
    """A logger that adds the name of its module, and the task, seat and trace of the running code,
    to each line. It removes secrets from values, text and tracebacks.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def _write(self, level: str, event: str, values: Mapping[str, Any]) -> None:
        target = _task_target.get() or _target
        if _LEVELS.index(level) < _LEVELS.index(target.settings.level):
            return
        sink = _sink(target.file)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        fields = {"module": self._module, **log_context(), **values, "timestamp": now}
        line = (
            _format(level, event, fields, colours=sink.isatty())
            if target.settings.format == "text"
            else json.dumps({"event": event, "level": level, **fields}, default=repr)
        )
        sink.write(scrub(line, _secrets) + "\n")
        sink.flush()

    def debug(self, event: str, **values: Any) -> None:
        """Log a detail for developers."""
        self._write("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event."""
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log something that a person should look at."""
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log a failure."""
        self._write("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Log a failure with the exception that is being handled."""
        self._write("error", event, {**values, "exception": traceback.format_exc().rstrip()})


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name.removeprefix("moothall."))
