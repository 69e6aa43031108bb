"""Rate limits of tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, time

from cachetools import LRUCache

from moothall.authorization.call_context import CallContext, Stopped
from moothall.domain.tool import ToolStatus
from moothall.errors import AlreadyExists, BusUnavailable
from moothall.ports import Bucket
from moothall.tools.spec import ToolSpec

_MINUTE, _HOUR = 60.0, 3600.0
_MAX_WINDOWS = 10_000
_MAX_TRIES = 50

Key = tuple[str, ...]


class Rates:
    """Sliding windows: no minute or hour contains more calls than the catalogue allows. Use one per
    gateway. Nothing here awaits.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: LRUCache[tuple[Key, float], deque[float]] = LRUCache(_MAX_WINDOWS)

    def take(self, key: Key, spec: ToolSpec) -> float:
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

    async def take(self, tenant: str, spec: ToolSpec) -> float:
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
    seconds = rates.take(scope_of(context, spec), spec)
    if seconds <= 0 and shared is not None and is_shared(spec) and _windows(spec):
        try:
            seconds = await shared.take(context.tenant, spec)
        except BusUnavailable as error:
            reason = (
                f"how often {spec.name} was called cannot be asked ({error.message}); try again"
            )
            raise Stopped(ToolStatus.RATE_LIMITED, reason) from error
    if seconds > 0:
        raise Stopped(ToolStatus.RATE_LIMITED, too_often(spec, seconds))


def too_often(spec: ToolSpec, seconds: float) -> str:
    """Return the message that a rate limit is reached and when the next call is allowed."""
    limits = " and ".join(
        f"{limit} a {'minute' if span == _MINUTE else 'hour'}" for limit, span in _windows(spec)
    )
    return f"{spec.name} may be called {limits}; the next may go in {seconds:.0f} seconds"
