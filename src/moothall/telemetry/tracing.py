"""The trace, task and seat of the running code: in log lines on stderr, in spans, and in events.

Spans are recorded only after `telemetry.record`.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, Unpack, cast

from moothall.config import LogSettings
from moothall.domain.event import Data, Event, EventType, Origin, cause_of, event_id, new_event
from moothall.domain.text import scrub

if TYPE_CHECKING:  # a command that only logs needs no tasks
    from moothall.domain.task import Deliberation

# The trace, task and seat of the running code, in context variables.


_NOTHING: Mapping[str, str] = {}

current_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""The W3C traceparent of the current span, or ''."""
_bound: ContextVar[Mapping[str, str]] = ContextVar("bound", default=_NOTHING)


@contextmanager
def bound(**values: str) -> Iterator[None]:
    """Add `values` (task_id, tenant, seat) to all lines that are logged in this context."""
    token = _bound.set({**_bound.get(), **values})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_values() -> Mapping[str, str]:
    """Return the values that are added to lines now."""
    return _bound.get()


def log_context() -> dict[str, str]:
    """Return the values for a log line: the bound ones, and the ids of trace and span."""
    values = dict(_bound.get())
    if current := current_traceparent.get():
        _, values["trace_id"], values["span_id"], _ = current.split("-")
    return values


# Spans. They are recorded only after `telemetry.record`.
#
# A traceparent has the W3C form `00-<trace id>-<span id>-<flags>`. It arrives with a call's
# metadata or an event, and is sent with events and model calls. With the exporter off, a caller's
# traceparent is passed on unchanged, and none is created. It is never part of an id, a prompt or a
# digest, so a repeat under another trace is the same repeat.


Value = str | int | float | bool | tuple[str, ...]
Kind = Literal["internal", "server", "client", "producer", "consumer"]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Span:
    """A span that is not recorded. The docstrings of its methods describe recorded ones."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        return None

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes. Secrets are removed from texts, and long texts are cut."""

    def fail(self, code: str, message: str = "") -> None:
        """Mark the span as failed with a stable code. An exception that leaves the span does that
        too.
        """


class _ForwardedSpan(Span):
    """A span that forwards a caller's traceparent and records nothing."""

    __slots__ = ("_parent", "_token")

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._token: Token[str] | None = None

    def __enter__(self) -> Self:
        self._token = current_traceparent.set(self._parent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        if self._token is not None:
            current_traceparent.reset(self._token)


MakeSpan = Callable[[str, Mapping[str, Value] | None, Kind, str | None, Sequence[str]], Span]
"""Creates a recorded span from name, attributes, kind, parent and links."""

_NO_SPAN_RECORDED = Span()


class _Recording:
    """How this process records now. Without `make`, it does not."""

    make: MakeSpan | None = None
    content: bool = False


def record_with(make: MakeSpan | None, *, content: bool = False) -> None:
    """Start to record this process's spans, or stop (None). content: with prompts and answers."""
    _Recording.make, _Recording.content = make, content


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    links: Sequence[str] = (),
) -> Span:
    """Return a span, a context manager.

    Names are few and fixed; ids belong in attributes. parent: a traceparent; by default the
    current span is the parent. links: traceparents of other spans that led here.
    """
    if _Recording.make is not None:
        return _Recording.make(name, attributes, kind, parent, links)
    if parent:
        return _ForwardedSpan(read_traceparent(parent))
    return _NO_SPAN_RECORDED


def is_recording() -> bool:
    """Return whether spans are recorded. Attributes that take long to build are only built then."""
    return _Recording.make is not None


def wants_content() -> bool:
    """Return whether spans include prompts and answers. They are long, so check before building
    them.
    """
    return _Recording.content


def traceparent() -> str:
    """Return the traceparent of the current span, or ''."""
    return current_traceparent.get()


def headers() -> dict[str, str]:
    """Return the HTTP headers that continue the trace on another server."""
    current = current_traceparent.get()
    return {"traceparent": current} if current else {}


def read_traceparent(text: str) -> str:
    """Return a valid traceparent, or '': a malformed one begins a new trace, as W3C says."""
    match = _TRACEPARENT.fullmatch(text) if len(text) <= 128 else None  # noqa: PLR2004 - a later version may have more fields
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN or text.startswith("ff"):
        return ""
    if text.startswith("00") and len(text) != 55:  # noqa: PLR2004 - version 00 has nothing after its flags
        return ""
    return f"00-{match[1]}-{match[2]}-{text[53:55]}"


# Creation of events, with their time, trace and cause.


def write(kind: EventType, subject: str, data: Data, **origin: Unpack[Origin]) -> Event:
    """Return an event in the current trace. Its time is now unless `origin` has one."""
    origin["traceparent"] = traceparent()
    origin["time"] = origin.get("time") or datetime.now(UTC).isoformat(timespec="milliseconds")
    return new_event(kind, subject, data, **origin)


def write_of(
    d: Deliberation,
    kind: EventType,
    data: Data,
    *,
    ordinal: str | int = 0,
    cause: str = "",
    source: str = "serve",
    time: str = "",
) -> Event:
    """Return an event of a deliberation, with its ids, tenant and cause."""
    return Event(
        id=event_id(kind, d.task_id, cause, ordinal),
        type=kind,
        subject=d.task_id,
        data={"task_id": d.task_id, **data},
        source=source,
        correlationid=d.story_id or d.task_id,
        causationid=cause or cause_of(kind, d.task_id, str(ordinal), data),
        traceparent=traceparent(),
        tenant=d.tenant,
        time=time or datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


# Structured logs on stderr. Use: `log = telemetry.get_logger(__name__); log.info("seat started",
# task_id=…)`.


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
        f"{style('36', name)}={style('35', _format_value(value))}"
        for name, value in sorted(values.items())
        if name not in {"timestamp", "exception"}
    ]
    head = f"{style('2', values['timestamp'])} [{style(_COLOURS[level], f'{level:<9}')}]"
    line = " ".join((head, style("1", f"{event:<30}"), *pairs))
    return f"{line}\n{exception}" if exception else line


def _format_value(value: object) -> str:
    return value if isinstance(value, str) and not _NEEDS_QUOTES & set(value) else repr(value)


class Logger:
    """A logger that adds the name of its module, and the task, seat and trace of the running code,
    to each line. It removes secrets from values, text and tracebacks.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def _write_entry(self, level: str, event: str, values: Mapping[str, Any]) -> None:
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
        self._write_entry("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event."""
        self._write_entry("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log something that a person should look at."""
        self._write_entry("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log a failure."""
        self._write_entry("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Log a failure with the exception that is being handled."""
        self._write_entry("error", event, {**values, "exception": traceback.format_exc().rstrip()})


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name.removeprefix("moothall."))
