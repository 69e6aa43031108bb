"""The tool limits of a seat: concurrent calls, total calls, seconds, and size of output. Circuit
breakers of tools: one that keeps failing is not called for a while. Rate limits of tools. A
cache of results, for tools whose catalogue entry allows it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import Any

from cachetools import LRUCache, TLRUCache

from moothall.authorization.checks import CallContext, Meter, Stopped
from moothall.concurrency import CircuitBreaker, CircuitCall, CircuitOpenError, TimeLimit
from moothall.config import GuardSettings
from moothall.domain.budget import Ledger
from moothall.domain.ids import digest
from moothall.domain.text import encodable
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import AlreadyExists, BusUnavailable
from moothall.ports import Bucket
from moothall.tools.schemas import canonical
from moothall.tools.spec import ToolSpec

# Circuit breakers of tools: one that keeps failing is not called for a while.


_MAX_REST_SECONDS = 600.0
_MAX_CIRCUITS = 10_000

Key = tuple[str, ...]
ReportStatus = Callable[[ToolStatus], None]

_FAULTS = frozenset(
    {
        ToolStatus.TIMEOUT,
        ToolStatus.MEMORY,
        ToolStatus.CPU,
        ToolStatus.OUTPUT,
        ToolStatus.PROCESSES,
        ToolStatus.DISK,
        ToolStatus.OUTCOME_UNKNOWN,
    }
)


def is_fault(spec: ToolSpec, status: ToolStatus) -> bool:
    """Return whether a call failed, as opposed to having an error for an answer. A missing file is
    an answer. A command that could not run, or a server that did not reply, is a failure.
    """
    return status in _FAULTS or (
        status is ToolStatus.ERROR and (spec.dangerous or spec.requirements.network_access)
    )


class ToolCircuits:
    """A circuit breaker for each key, which lives across calls. It opens after a number of
    consecutive failures, and rests for up to ten minutes.
    """

    def __init__(
        self, failures: int, rest_seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._max_failures = failures
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._breakers: LRUCache[Key, CircuitBreaker] = LRUCache(_MAX_CIRCUITS)

    @contextmanager
    def watch_call(
        self, key: Key, spec: ToolSpec, *, has_full_time: bool = True
    ) -> Iterator[ReportStatus]:
        """Let a call through and yield a function that reports its status.

        A call without a report counts as a failure if it raised an `Exception`, and does not count
        if it was stopped or cancelled. Without `has_full_time` the caller's deadline is shorter
        than the tool's own limit, and a timeout does not count. Raises `Stopped` while the circuit
        is open.
        """
        call = self._enter(key, spec)
        failed: bool | None = None
        has_reported = False

        def report_status(status: ToolStatus) -> None:
            nonlocal failed, has_reported
            has_reported = True
            if has_full_time or status is not ToolStatus.TIMEOUT:
                failed = is_fault(spec, status)

        try:
            yield report_status
        except Stopped as stopped:
            if not has_reported and is_fault(spec, stopped.status):
                report_status(stopped.status)
            raise
        except Exception:
            if not has_reported:
                failed = True
            raise
        finally:
            call.end(failed=failed)

    def _enter(self, key: Key, spec: ToolSpec) -> CircuitCall:
        breaker = self._breakers.setdefault(
            key,
            CircuitBreaker(
                self._max_failures,
                self._rest_seconds,
                max_rest_seconds=_MAX_REST_SECONDS,
                clock=self._clock,
            ),
        )
        try:
            return breaker.enter()
        except CircuitOpenError as error:
            retry_note = (
                f"it is tried again in {error.seconds:.0f} seconds"
                if error.seconds
                else "it is being tried again now"
            )
            raise Stopped(
                ToolStatus.CIRCUIT_OPEN,
                f"{spec.name} failed {self._max_failures} times in a row; {retry_note}",
            ) from None


# Rate limits of tools.


_MINUTE, _HOUR = 60.0, 3600.0
_MAX_WINDOWS = 10_000
_MAX_TRIES = 50


class Rates:
    """Sliding windows: no minute or hour contains more calls than the catalogue allows. Use one per
    gateway. Nothing here awaits.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: LRUCache[tuple[Key, float], deque[float]] = LRUCache(_MAX_WINDOWS)

    def count_call(self, key: Key, spec: ToolSpec) -> float:
        """Count a call and return 0, or return the seconds until the next call is allowed, without
        counting this one.
        """
        now = self._clock()
        windows = _windows(spec)
        for limit, span in windows:
            calls = self._calls.setdefault((key, span), deque())
            while calls and calls[0] <= now - span:
                calls.popleft()
            if len(calls) >= limit:
                return calls[0] + span - now
        for _, span in windows:
            self._calls.setdefault((key, span), deque()).append(now)
        return 0.0


class SharedRates:
    """The same windows for all processes on one bus, stored in a bucket. They apply to calls beyond
    the workspace, whose limit is per tenant. Such a call costs two round trips to the bus.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time) -> None:
        self._bucket = bucket
        self._clock = clock

    async def count_call(self, tenant: str, spec: ToolSpec) -> float:
        """Count a call and return 0, or return the seconds until the next call is allowed. Raises
        `BusUnavailable`.
        """
        key = f"{tenant}.{spec.name.replace('.', '-')}"
        windows = _windows(spec)
        for _ in range(_MAX_TRIES):
            document, revision = await self._bucket.get_with_revision(key)
            now = self._clock()
            times = [float(time_of_call) for time_of_call in (document or {}).get("calls", ())]
            calls = sorted(
                time_of_call for time_of_call in times if now - _HOUR < time_of_call <= now + _HOUR
            )
            for limit, span in windows:
                recent = [time_of_call for time_of_call in calls if time_of_call > now - span]
                if len(recent) >= limit:
                    return max(recent[-limit] + span - now, 0.001)
            try:
                await self._bucket.replace(key, {"calls": [*calls, now]}, revision)
            except AlreadyExists:
                continue  # another process counted one meanwhile
            return 0.0
        return 1.0


def _windows(spec: ToolSpec) -> list[tuple[int, float]]:
    return [
        (limit, span)
        for limit, span in ((spec.rate.per_minute, _MINUTE), (spec.rate.per_hour, _HOUR))
        if limit
    ]


def is_shared(spec: ToolSpec) -> bool:
    """Return whether all processes count the calls of a tool together: those with effects or
    requests beyond the workspace.
    """
    return spec.outside or spec.requirements.network_access


def scope_of(context: CallContext, spec: ToolSpec) -> Key:
    """Return the key under which calls of a tool are counted: per tenant for calls beyond the
    workspace, else per seat.
    """
    if is_shared(spec):
        return (context.tenant, spec.name)
    return (context.tenant, context.task_id, context.seat, context.workspace_id, spec.name)


async def check_rate(
    rates: Rates, shared: SharedRates | None, context: CallContext, spec: ToolSpec
) -> None:
    """Raise `Stopped` if the tool may not be called now, by the limits of this process or by the
    `shared` ones.
    """
    seconds = rates.count_call(scope_of(context, spec), spec)
    if seconds <= 0 and shared is not None and is_shared(spec) and _windows(spec):
        try:
            seconds = await shared.count_call(context.tenant, spec)
        except BusUnavailable as error:
            reason = (
                f"the number of calls of {spec.name} is unavailable ({error.message}); try again"
            )
            raise Stopped(ToolStatus.RATE_LIMITED, reason) from error
    if seconds > 0:
        raise Stopped(ToolStatus.RATE_LIMITED, too_often(spec, seconds))


def too_often(spec: ToolSpec, seconds: float) -> str:
    """Return the message that a rate limit is reached and when the next call is allowed."""
    limits = " and ".join(
        f"{limit} a {'minute' if span == _MINUTE else 'hour'}" for limit, span in _windows(spec)
    )
    return f"{spec.name} may be called {limits}; the next call is possible in {seconds:.0f} seconds"


# A cache of results, for tools whose catalogue entry allows it.


def cache_key(tenant: str, workspace: str, spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call's result. Tenants never share a key; tools that read files have one
    per workspace.
    """
    scope = "" if spec.requirements.file_system == "none" else workspace
    return digest(tenant, scope, spec.name, spec.version, canonical(arguments))


@dataclass(frozen=True, slots=True)
class _Entry:
    result: ToolResult
    size: int
    seconds: float


class ResultCache:
    """A cache of successful results, with the lifetime from the catalogue and at most `max_bytes`
    of output.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self._entries: TLRUCache[str, _Entry] = TLRUCache(
            max_bytes,
            ttu=lambda _, entry, now: now + entry.seconds,
            timer=clock,
            getsizeof=lambda entry: entry.size,
        )

    def get(self, key: str) -> ToolResult | None:
        """Return the cached result, or None."""
        entry = self._entries.get(key)
        return entry.result if entry else None

    def put(self, key: str, spec: ToolSpec, result: ToolResult) -> None:
        """Store a result, unless it failed, is too large, or its tool has no cache time."""
        if result.status is not ToolStatus.SUCCESS or spec.cache_seconds <= 0:
            return
        entry = _Entry(result, len(canonical(result.output)), spec.cache_seconds)
        if entry.size <= self._entries.maxsize:
            self._entries[key] = entry


# The tool limits of a seat: concurrent calls, total calls, seconds, and size of output. Tokens and
# money are in the deliberation's `Ledger`.


_MAX_DEPTH = 20
_MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """Denied calls, and attempts to escape a sandbox, of one principal or task within `seconds`
    that raise an alert.
    """

    denials: int = 20
    escapes: int = 3
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of one gateway. Only seat_calls is a setting.

    calls_in_flight: concurrent calls of all seats; further ones wait. seat_in_flight: those of one
    seat; further ones are refused. seat_calls: all calls of one seat. call_seconds: the maximum
    duration of one call; a tool's own limit may be lower. grace_seconds: how long a workspace may
    take to end a call itself after its deadline. argument_bytes: arguments of one call, as JSON.
    result_bytes, event_bytes: the output of a call that the seat gets, and that its event has; more
    is truncated.
    breaker_failures: consecutive failures of a tool that open its circuit breaker. breaker_seconds:
    how long it stays open; doubles while the tool keeps failing.
    """

    calls_in_flight: int = 32
    seat_in_flight: int = 4
    seat_calls: int = 400
    call_seconds: float = 600.0
    grace_seconds: float = 8.0
    argument_bytes: int = 1_000_000
    result_bytes: int = 60_000
    event_bytes: int = 16_000
    breaker_failures: int = 5
    breaker_seconds: float = 30.0
    alerts: AlertLimits = AlertLimits()


GATEWAY_LIMITS = GatewayLimits()


def gateway_limits(settings: GuardSettings) -> GatewayLimits:
    """Return the limits with those of the settings."""
    return replace(GATEWAY_LIMITS, seat_calls=settings.seat_calls)


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
        shortened = {**_cut_value(output, budget, 0), "truncated": True}
        # Escapes make JSON longer than its text, so cut again with a smaller budget.
        if _size(shortened) <= limit + 200 or budget < 16:  # noqa: PLR2004  # nothing is left to cut
            return shortened
        budget = budget // 2


def _size(value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, default=str).encode())
    except (RecursionError, ValueError):  # too deep, or half a character
        return 1 << 60


def _cut_value(value: Any, budget: int, depth: int) -> Any:
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
            items.append(_cut_value(item, budget, depth + 1))
            budget -= _size(items[-1]) + 2
        return items
    return value


def _cut_mapping(value: Mapping[str, Any], budget: int, depth: int) -> dict[str, Any]:
    items: dict[str, Any] = {}
    # Small values first: a verdict or an exit code must not be dropped because of a long text
    # before it.
    for key, item in sorted(value.items(), key=lambda pair: _size(pair[1])):
        if budget <= 0:
            break
        items[shorten(str(key), 200)] = _cut_value(item, budget, depth + 1)
        budget -= len(str(key)) + _size(items[shorten(str(key), 200)]) + 4
    return {key: items[key] for key in (shorten(str(name), 200) for name in value) if key in items}


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


def check_spending(ledger: Ledger | None, meter: Meter, limits: GatewayLimits) -> None:
    """Raise `Stopped` if nothing more may be spent.

    A turn that was paid with the last token still runs its tools; one past the limit does not.
    """
    if reason := _describe_overspending(ledger, meter, limits):
        raise Stopped(ToolStatus.BUDGET_EXCEEDED, reason)


def _describe_overspending(ledger: Ledger | None, meter: Meter, limits: GatewayLimits) -> str:
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
    for name, amount, limit in (
        ("tokens", spent.tokens, budget.tokens),
        ("calls", spent.calls, budget.calls),
        ("cost_usd", spent.cost_usd, budget.cost_usd),
    ):
        if limit and amount > limit:
            return f"the deliberation's budget of {limit} {name} is overspent: {amount}"
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
