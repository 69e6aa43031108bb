"""The tool limits of a seat: concurrent calls, total calls, seconds, and size of output. Tokens and
money are in the deliberation's `Ledger`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from moothall.authorization.call_context import Meter, Stopped
from moothall.concurrency import TimeLimit
from moothall.config import GuardSettings
from moothall.domain.budget import Ledger
from moothall.domain.text import encodable
from moothall.domain.tool import ToolStatus

_MAX_DEPTH = 20
_MAX_NAME_CHARS = 100


def check_limits(meter: Meter, limits: GuardSettings) -> None:
    """Raise `Stopped` if the seat may not start another call now."""
    if meter.in_flight >= limits.seat_in_flight:
        reason = (
            f"{meter.in_flight} of your calls are still running and {limits.seat_in_flight} may; "
            "wait for one to end"
        )
        raise Stopped(ToolStatus.RATE_LIMITED, reason)


def cut_output(output: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return `output` unchanged if its JSON has at most `limit` bytes, or else cut to about that
    size.

    Long strings lose their middle (errors are at the end, headings at the start); long lists and
    objects lose their tail. `truncated` is then true.
    """
    if _size(output) <= limit:
        return dict(output)
    budget = limit
    while True:
        cut = {**_cut(output, budget, 0), "truncated": True}
        # Escapes make JSON longer than its text, so cut again with a smaller budget.
        if _size(cut) <= limit + 200 or budget < 16:  # noqa: PLR2004  # nothing is left to cut
            return cut
        budget = budget // 2


def _size(value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, default=str).encode())
    except (RecursionError, ValueError):  # too deep, or half a character
        return 1 << 60


def _cut(value: Any, budget: int, depth: int) -> Any:
    if isinstance(value, str):
        return shorten(value, budget)
    if isinstance(value, (Mapping, list, tuple)) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return _cut_mapping(value, budget, depth)
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            if budget <= 0:
                items.append(f"… {len(value) - len(items)} more left out")
                break
            items.append(_cut(item, budget, depth + 1))
            budget -= _size(items[-1]) + 2
        return items
    return value


def _cut_mapping(value: Mapping[str, Any], budget: int, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    # Small values first: a verdict or an exit code must not be dropped because of a long text
    # before it.
    for key, item in sorted(value.items(), key=lambda pair: _size(pair[1])):
        if budget <= 0:
            break
        kept[shorten(str(key), 200)] = _cut(item, budget, depth + 1)
        budget -= len(str(key)) + _size(kept[shorten(str(key), 200)]) + 4
    return {key: kept[key] for key in (shorten(str(name), 200) for name in value) if key in kept}


def shorten(text: str, limit: int) -> str:
    """Shorten a text to about `limit` characters: a third from its start and two thirds from its
    end, with a count of the missing ones between. A name, or a text that is hardly longer than
    `limit`, is cut at its end.
    """
    text = encodable(text)
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    mark = f"\n… {len(text) - limit} characters left out …\n"
    if limit < _MAX_NAME_CHARS or len(text) - limit <= len(mark):
        return f"{text[: max(limit - 1, 0)]}…"
    return f"{text[:head]}{mark}{text[len(text) - tail :]}"


def check_spending(ledger: Ledger | None, meter: Meter, limits: GuardSettings) -> None:
    """Something may still be spent; else `Stopped`.

    A turn that was paid with the last token still runs its tools; one past the limit does not.
    """
    if reason := _overspent(ledger, meter, limits):
        raise Stopped(ToolStatus.BUDGET_EXCEEDED, reason)


def _overspent(ledger: Ledger | None, meter: Meter, limits: GuardSettings) -> str:
    if meter.calls >= limits.seat_calls:
        return (
            f"all {limits.seat_calls} tool calls of this seat are used; finish with what you have"
        )
    if meter.seconds + meter.held_seconds >= limits.seat_seconds:
        return (
            f"all {limits.seat_seconds:g} seconds of this seat's tools are used; finish with what "
            "you have"
        )
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
def reserve(meter: Meter, limits: GuardSettings, seconds: float) -> Iterator[float]:
    """Count a call, and reserve up to `seconds` of the seat's remaining time until it ends. Yields
    the reserved seconds.
    """
    reserved = max(0.0, min(seconds, limits.seat_seconds - meter.seconds - meter.held_seconds))
    meter.calls += 1
    meter.in_flight += 1
    meter.held_seconds += reserved
    try:
        yield reserved
    finally:
        meter.in_flight -= 1
        meter.held_seconds -= reserved


@contextmanager
def book_time(meter: Meter, limit: TimeLimit | None = None) -> Iterator[None]:
    """Charge the duration of the body, less the time that `limit` did not count."""
    started = monotonic()
    try:
        yield
    finally:
        meter.seconds += monotonic() - started - (limit.waited if limit else 0.0)
