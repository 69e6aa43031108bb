"""How often a tool may be called."""

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
_KEPT = 10_000
_TRIES = 50

Key = tuple[str, ...]


class Rates:
    """Windows that slide: at no instant have more calls been let through in the last minute or hour
    than the catalogue allows. One a gate; nothing here awaits.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: LRUCache[tuple[Key, float], deque[float]] = LRUCache(_KEPT)

    def take(self, key: Key, spec: ToolSpec) -> float:
        """Count a call and return 0, or return the seconds until one may be made; that one is not
        counted.
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
    """The same windows for all processes on one bus, kept in a bucket: of calls that reach beyond
    the workspace, whose limit is a tenant's. It costs such a call two round trips to the bus, and
    the others nothing.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time) -> None:
        self._bucket = bucket
        self._clock = clock

    async def take(self, tenant: str, spec: ToolSpec) -> float:
        """Count a call and return 0, or return the seconds until one may be made. Raises
        `BusUnavailable`.
        """
        key = f"{tenant}.{spec.name.replace('.', '-')}"
        windows = _windows(spec)
        for _ in range(_TRIES):
            document, revision = await self._bucket.get_with_revision(key)
            now = self._clock()
            known = [float(moment) for moment in (document or {}).get("calls", ())]
            calls = sorted(moment for moment in known if now - _HOUR < moment <= now + _HOUR)
            for limit, span in windows:
                recent = [moment for moment in calls if moment > now - span]
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
    """Whether all processes count the calls of a tool together: where it acts or asks beyond the
    workspace.
    """
    return spec.outside or spec.requirements.network_access


def scope_of(seat: CallContext, spec: ToolSpec) -> Key:
    """Return whose calls of a tool are counted together: a tenant's where it acts or asks beyond
    the workspace, else a seat's.
    """
    if is_shared(spec):
        return (seat.tenant, spec.name)
    return (seat.tenant, seat.task_id, seat.seat, seat.workspace_id, spec.name)


async def check_rate(
    rates: Rates, together: SharedRates | None, seat: CallContext, spec: ToolSpec
) -> None:
    """The tool may be called just now, here and in all processes `together`; else `Stopped`."""
    seconds = rates.take(scope_of(seat, spec), spec)
    if seconds <= 0 and together is not None and is_shared(spec) and _windows(spec):
        try:
            seconds = await together.take(seat.tenant, spec)
        except BusUnavailable as error:
            reason = (
                f"how often {spec.name} was called cannot be asked ({error.message}); try again"
            )
            raise Stopped(ToolStatus.RATE_LIMITED, reason) from error
    if seconds > 0:
        raise Stopped(ToolStatus.RATE_LIMITED, too_often(spec, seconds))


def too_often(spec: ToolSpec, seconds: float) -> str:
    """Say that a tool was called as often as it may be, and when the next call may go."""
    most = " and ".join(
        f"{limit} a {'minute' if span == _MINUTE else 'hour'}" for limit, span in _windows(spec)
    )
    return f"{spec.name} may be called {most}; the next may go in {seconds:.0f} seconds"
