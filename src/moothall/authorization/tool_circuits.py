"""Circuit breakers of tools: one that keeps failing is not called for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from cachetools import LRUCache

from moothall.authorization.call_context import Stopped
from moothall.circuit_breaker import CircuitBreaker, CircuitCall, CircuitOpenError
from moothall.domain.tool import ToolStatus
from moothall.tools.spec import ToolSpec

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
    def watching(
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
        reported = False

        def report_status(status: ToolStatus) -> None:
            nonlocal failed, reported
            reported = True
            if has_full_time or status is not ToolStatus.TIMEOUT:
                failed = is_fault(spec, status)

        try:
            yield report_status
        except Stopped as stopped:
            if not reported and is_fault(spec, stopped.status):
                report_status(stopped.status)
            raise
        except Exception:
            if not reported:
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
            when = (
                f"it is tried again in {error.seconds:.0f} seconds"
                if error.seconds
                else "it is being tried again just now"
            )
            raise Stopped(
                ToolStatus.CIRCUIT_OPEN,
                f"{spec.name} failed {self._max_failures} times in a row; {when}",
            ) from None
