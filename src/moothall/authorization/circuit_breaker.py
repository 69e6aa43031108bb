"""Circuit breakers: a tool that keeps failing is not called for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from cachetools import LRUCache

from moothall.authorization.call_context import Stopped
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


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    opened: float = 0.0
    rest: float = 0.0
    probing: bool = False


class CircuitBreakers:
    """One circuit per key, which lives across calls. It is closed until `failures` consecutive
    calls have failed, then open for `rest_seconds`, then half open: one call may try. If that call
    fails, the rest doubles, up to ten minutes.
    """

    def __init__(
        self, failures: int, rest_seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._max_failures = failures
        self._rest = rest_seconds
        self._clock = clock
        self._circuits: LRUCache[Key, _Circuit] = LRUCache(_MAX_CIRCUITS)

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
        circuit, probe = self._enter(key, spec)
        reported = False

        def report_status(status: ToolStatus) -> None:
            nonlocal reported
            reported = True
            if has_full_time or status is not ToolStatus.TIMEOUT:
                self._count(circuit, failed=is_fault(spec, status))

        try:
            yield report_status
        except Stopped as stopped:
            if not reported and is_fault(spec, stopped.status):
                report_status(stopped.status)
            raise
        except Exception:
            if not reported:
                self._count(circuit, failed=True)
            raise
        finally:
            if probe:
                circuit.probing = False

    def _enter(self, key: Key, spec: ToolSpec) -> tuple[_Circuit, bool]:
        circuit = self._circuits.setdefault(key, _Circuit())
        if circuit.failures < self._max_failures:
            return circuit, False
        rest_left = circuit.opened + circuit.rest - self._clock()
        if rest_left > 0 or circuit.probing:
            when = (
                f"it is tried again in {rest_left:.0f} seconds"
                if rest_left > 0
                else "it is being tried again just now"
            )
            raise Stopped(
                ToolStatus.CIRCUIT_OPEN,
                f"{spec.name} failed {circuit.failures} times in a row; {when}",
            )
        circuit.probing = True
        return circuit, True

    def _count(self, circuit: _Circuit, *, failed: bool) -> None:
        if not failed:
            circuit.failures, circuit.rest = 0, 0.0
            return
        circuit.failures += 1
        if circuit.failures >= self._max_failures:
            circuit.opened = self._clock()
            circuit.rest = min(circuit.rest * 2, _MAX_REST_SECONDS) if circuit.rest else self._rest
