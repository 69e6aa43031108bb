"""Where the running code is: in which trace, and about which task and seat. Follows the task, costs
nothing to keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_NOTHING: Mapping[str, str] = {}

here: ContextVar[str] = ContextVar("traceparent", default="")
"""The W3C traceparent of the span that the running code is in, or empty."""
_bound: ContextVar[Mapping[str, str]] = ContextVar("bound", default=_NOTHING)


@contextmanager
def bound(**values: str) -> Iterator[None]:
    """Every line that is logged inside carries `values` (task_id, tenant, seat), those around it
    included.
    """
    token = _bound.set({**_bound.get(), **values})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_values() -> Mapping[str, str]:
    """Return what is bound here."""
    return _bound.get()


def place() -> dict[str, str]:
    """Return what a log line says of where it was written: what is bound, and the ids of trace and
    span.
    """
    found = dict(_bound.get())
    if current := here.get():
        _, found["trace_id"], found["span_id"], _ = current.split("-")
    return found
