"""The tool limits of a seat: concurrent calls, total calls, seconds, and size of output. Tokens and
money are in the deliberation's `Ledger`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of one gateway that are not settings.

    calls_in_flight: concurrent calls of all seats; further ones wait. seat_in_flight: those of one
    seat; further ones are refused. call_seconds: the maximum duration of one call; a tool's own
    limit may be lower. grace_seconds: how long a workspace may take to end a call
    itself after its deadline. argument_bytes: arguments of one call, as JSON. result_bytes,
    event_bytes: the output of a call that the seat gets, and that its event has; more is truncated.
    breaker_failures: consecutive failures of a tool that open its circuit breaker. breaker_seconds:
    how long it stays open; doubles while the tool keeps failing. alert_denials,
    alert_escapes: denied calls, and attempts to escape a sandbox, of one principal or task within
    alert_seconds that raise an alert.
    """

    calls_in_flight: int = 32
    seat_in_flight: int = 4
    call_seconds: float = 600.0
    grace_seconds: float = 8.0
    argument_bytes: int = 1_000_000
    result_bytes: int = 60_000
    event_bytes: int = 16_000
    breaker_failures: int = 5
    breaker_seconds: float = 30.0
    alert_denials: int = 20
    alert_escapes: int = 3
    alert_seconds: float = 60.0


GATEWAY_LIMITS = GatewayLimits()

TOKEN_SECONDS = 3600.0
"""The maximum lifetime of the capability token of an external caller."""
_SEAT_SECONDS = 1200.0
"""The total running time of one seat's tools."""


def check_limits(meter: Meter, seat_in_flight: int) -> None:
    """Raise `Stopped` if the seat, which may have `seat_in_flight` concurrent calls, may not start
    another one now.
    """
    if meter.in_flight >= seat_in_flight:
        reason = (
            f"{meter.in_flight} of your calls are still running and {seat_in_flight} may; "
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
    if meter.seconds + meter.held_seconds >= _SEAT_SECONDS:
        return (
            f"all {_SEAT_SECONDS:g} seconds of this seat's tools are used; finish with what "
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
def reserve(meter: Meter, seconds: float) -> Iterator[float]:
    """Count a call, and reserve up to `seconds` of the seat's remaining time until it ends. Yields
    the reserved seconds.
    """
    reserved = max(0.0, min(seconds, _SEAT_SECONDS - meter.seconds - meter.held_seconds))
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
