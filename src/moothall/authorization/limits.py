"""What a seat may use: how many calls at a time and in all, how many seconds, and how much output
goes back. Tokens and money are the deliberation's `Ledger`.
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

_DEEPEST = 20
_LONGEST_NAME = 100


def check_limits(meter: Meter, limits: GuardSettings) -> None:
    """The seat may start another call just now; else `Stopped`."""
    if meter.in_flight >= limits.seat_in_flight:
        reason = (
            f"{meter.in_flight} of your calls are still running and {limits.seat_in_flight} may; "
            "wait for one to end"
        )
        raise Stopped(ToolStatus.RATE_LIMITED, reason)


def cut_output(output: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return `output` as it is where its JSON has at most `limit` bytes, else cut to about that.

    Long strings lose their middle (errors stand at the end, headings at the start), long lists and
    objects
    their tail; `truncated` is then true.
    """
    if _size(output) <= limit:
        return dict(output)
    room = limit
    while True:
        cut = {**_cut(output, room, 0), "truncated": True}
        # Escapes make JSON longer than its text: a second, narrower cut settles it.
        if _size(cut) <= limit + 200 or room < 16:  # noqa: PLR2004  # nothing is left to cut
            return cut
        room = room // 2


def _size(value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, default=str).encode())
    except (RecursionError, ValueError):  # too deep, or half a character
        return 1 << 60


def _cut(value: Any, room: int, depth: int) -> Any:
    if isinstance(value, str):
        return shorten(value, room)
    if isinstance(value, (Mapping, list, tuple)) and depth >= _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return _cut_mapping(value, room, depth)
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            if room <= 0:
                items.append(f"… {len(value) - len(items)} more left out")
                break
            items.append(_cut(item, room, depth + 1))
            room -= _size(items[-1]) + 2
        return items
    return value


def _cut_mapping(value: Mapping[str, Any], room: int, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    # Small things first: a verdict or an exit code must not go because a long text stands before
    # it.
    for key, item in sorted(value.items(), key=lambda pair: _size(pair[1])):
        if room <= 0:
            break
        kept[shorten(str(key), 200)] = _cut(item, room, depth + 1)
        room -= len(str(key)) + _size(kept[shorten(str(key), 200)]) + 4
    return {key: kept[key] for key in (shorten(str(name), 200) for name in value) if key in kept}


def shorten(text: str, limit: int) -> str:
    """Return at most about `limit` characters: the first third and the last two, and how many are
    missing. A name, and a text that is hardly longer than `limit`, is cut at its end.
    """
    text = encodable(text)
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    mark = f"\n… {len(text) - limit} characters left out …\n"
    if limit < _LONGEST_NAME or len(text) - limit <= len(mark):
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
    """Count a call, and hold up to `seconds` of what the seat has left while it waits and runs.
    Yields what is held.
    """
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
def book_time(meter: Meter, limit: TimeLimit | None = None) -> Iterator[None]:
    """Book how long the body takes, less the time that `limit` did not count."""
    started = monotonic()
    try:
        yield
    finally:
        meter.seconds += monotonic() - started - (limit.waited if limit else 0.0)
