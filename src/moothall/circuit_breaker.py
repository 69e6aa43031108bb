"""A circuit breaker: what keeps failing is not called for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic


class CircuitOpenError(Exception):
    """No call is let through. seconds: until one may try, 0 if one is trying now."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no call is let through for {seconds:g} seconds")
        self.seconds = seconds


class CircuitBreaker:
    """A circuit breaker over the last `calls` results.

    It opens if all of them are from the last `window_seconds`, and the share `failed_share` of them
    failed. After `rest_seconds` it lets one call through. If that fails, the rest doubles, up to
    `max_rest_seconds`; otherwise the circuit is closed.
    """

    def __init__(
        self,
        calls: int,
        rest_seconds: float,
        *,
        failed_share: float = 1.0,
        window_seconds: float = inf,
        max_rest_seconds: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._failed_share = failed_share
        self._window_seconds = window_seconds
        self._rest_seconds = self._first_rest_seconds = rest_seconds
        self._max_rest_seconds = max(max_rest_seconds, rest_seconds)
        self._clock = clock
        self._results: deque[tuple[float, bool]] = deque(maxlen=calls)
        self._open_until: float | None = None
        self._probing = False

    def enter(self) -> CircuitCall:
        """Let a call through. Raises `CircuitOpenError`."""
        if self._open_until is None:
            return CircuitCall(self, probe=False)
        seconds_left = max(0.0, self._open_until - self._clock())
        if seconds_left or self._probing:
            raise CircuitOpenError(seconds_left)
        self._probing = True
        return CircuitCall(self, probe=True)

    def record(self, *, failed: bool | None, probe: bool) -> None:
        """Record the result of a call that was let through; use `CircuitCall.end`."""
        if probe:
            self._probing = False
            if failed:
                self._rest_seconds = min(self._rest_seconds * 2, self._max_rest_seconds)
                self._open_until = self._clock() + self._rest_seconds
            elif failed is False:
                self._open_until = None
                self._rest_seconds = self._first_rest_seconds
                self._results.clear()
            return
        if failed is None or self._open_until is not None:
            return
        now = self._clock()
        self._results.append((now, failed))
        failures = sum(call_failed for _, call_failed in self._results)
        if (
            len(self._results) == self._results.maxlen
            and self._results[0][0] >= now - self._window_seconds
            and failures >= self._failed_share * len(self._results)
        ):
            self._open_until = now + self._rest_seconds


class CircuitCall:
    """A call that a circuit breaker let through. It has to be ended."""

    def __init__(self, breaker: CircuitBreaker, *, probe: bool) -> None:
        self._breaker = breaker
        self._probe = probe

    def end(self, *, failed: bool | None) -> None:
        """Record the result; None if it says nothing about what was called."""
        self._breaker.record(failed=failed, probe=self._probe)
