"""What a seat's tools may use together: calls and seconds. Tokens and money are the deliberation's `Ledger`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from moothall.config import Guard
from moothall.domain.budget import Ledger
from moothall.domain.tool import ToolStatus
from moothall.guard.seat import Meter, Stopped


def check_budget(ledger: Ledger | None, meter: Meter, limits: Guard) -> None:
    """Something may still be spent; else `Stopped`.

    A turn that was paid with the last token still runs its tools; one past the limit does not.
    """
    if reason := _overspent(ledger, meter, limits):
        raise Stopped(ToolStatus.BUDGET_EXCEEDED, reason)


def _overspent(ledger: Ledger | None, meter: Meter, limits: Guard) -> str:
    if meter.calls >= limits.seat_calls:
        return f"all {limits.seat_calls} tool calls of this seat are used; finish with what you have"
    if meter.seconds + meter.held_seconds >= limits.seat_seconds:
        return f"all {limits.seat_seconds:g} seconds of this seat's tools are used; finish with what you have"
    if ledger is None:
        return ""
    spent, budget = ledger.spent, ledger.budget
    for name, used, limit in (
        ("tokens", spent.tokens, budget.tokens),
        ("calls", spent.calls, budget.calls),
        ("cost_usd", spent.cost_usd, budget.cost_usd),
    ):
        if limit and used > limit:
            return f"the deliberation's budget of {limit} {name} is overspent: {used}"
    return ""


@contextmanager
def reserve(meter: Meter, limits: Guard, seconds: float) -> Iterator[float]:
    """Count a call, and hold up to `seconds` of what the seat has left while it waits and runs. Yields what is held."""
    held = max(0.0, min(seconds, limits.seat_seconds - meter.seconds - meter.held_seconds))
    meter.calls += 1
    meter.in_flight += 1
    meter.held_seconds += held
    try:
        yield held
    finally:
        meter.in_flight -= 1
        meter.held_seconds -= held


@contextmanager
def book_time(meter: Meter) -> Iterator[None]:
    """Book how long the body takes."""
    started = monotonic()
    try:
        yield
    finally:
        meter.seconds += monotonic() - started
