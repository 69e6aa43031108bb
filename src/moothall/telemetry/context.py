"""The trace, task and seat of the running code, in context variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_NOTHING: Mapping[str, str] = {}

here: ContextVar[str] = ContextVar("traceparent", default="")
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
    if current := here.get():
        _, values["trace_id"], values["span_id"], _ = current.split("-")
    return values
