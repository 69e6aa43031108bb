"""How often a tool may be called."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

from moothall.domain.tool import ToolStatus
from moothall.guard.seat import SeatContext, Stopped
from moothall.tools.spec import ToolSpec

_MINUTE, _HOUR = 60.0, 3600.0
_KEPT = 10_000

Key = tuple[str, ...]


class Rates:
    """Windows that slide: at no instant have more calls been let through in the last minute or hour than the catalogue
    allows. One a gate; nothing here awaits.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: OrderedDict[tuple[Key, float], deque[float]] = OrderedDict()

    def take(self, key: Key, spec: ToolSpec) -> float:
        """Count a call and return 0, or return the seconds until one may be made; that one is not counted."""
        now = self._clock()
        windows = [(limit, span) for limit, span in ((spec.rate.per_minute, _MINUTE), (spec.rate.per_hour, _HOUR)) if limit]
        for limit, span in windows:
            calls = self._window(key, span)
            while calls and calls[0] <= now - span:
                calls.popleft()
            if len(calls) >= limit:
                return calls[0] + span - now
        for _, span in windows:
            self._window(key, span).append(now)
        return 0.0

    def _window(self, key: Key, span: float) -> deque[float]:
        window = self._calls.setdefault((key, span), deque())
        self._calls.move_to_end((key, span))
        while len(self._calls) > _KEPT:
            self._calls.popitem(last=False)
        return window


def scope_of(seat: SeatContext, spec: ToolSpec) -> Key:
    """Return whose calls of a tool are counted together: a tenant's where it acts or asks beyond the workspace, else a seat's."""
    if spec.outside or spec.requirements.network_access:
        return (seat.tenant, spec.name)
    return (seat.tenant, seat.task_id, seat.seat, seat.workspace_id, spec.name)


def check_rate(rates: Rates, seat: SeatContext, spec: ToolSpec) -> None:
    """The tool may be called just now; else `Stopped`."""
    seconds = rates.take(scope_of(seat, spec), spec)
    if seconds > 0:
        most = " and ".join(
            f"{limit} a {span}" for limit, span in ((spec.rate.per_minute, "minute"), (spec.rate.per_hour, "hour")) if limit
        )
        reason = f"{spec.name} may be called {most}; the next may go in {seconds:.0f} seconds"
        raise Stopped(ToolStatus.RATE_LIMITED, reason)
