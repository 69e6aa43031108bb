"""A tool that keeps failing is left alone for a while, for everybody's sake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from cachetools import LRUCache

from moothall.authorization.call_context import Stopped
from moothall.domain.tool import ToolStatus
from moothall.tools.spec import ToolSpec

_LONGEST = 600.0
_KEPT = 10_000

Key = tuple[str, ...]
Told = Callable[[ToolStatus], None]

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
    """Whether a call failed as opposed to being answered. That a file is not there is an answer; a
    command that could
    not run, or a server that did not reply, is a failure.
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
    """One circuit a key, which lives across calls. Closed until `failures` calls in a row failed,
    then open for `rest_seconds`; then half open: one call may try. If it fails the rest doubles, up
    to ten minutes.
    """

    def __init__(
        self, failures: int, rest_seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._most = failures
        self._rest = rest_seconds
        self._clock = clock
        self._circuits: LRUCache[Key, _Circuit] = LRUCache(_KEPT)

    @contextmanager
    def watching(self, key: Key, spec: ToolSpec, *, has_full_time: bool = True) -> Iterator[Told]:
        """Let a call through, and hear by what is yielded how it ended. Where nothing is said it
        counts as a failure if it raised an `Exception`, and not at all if it was stopped or
        cancelled. Without
        `has_full_time` the caller's deadline is shorter than the tool's own limit, and a timeout
        does not count. Raises `Stopped` while the circuit is open.
        """
        circuit, probe = self._enter(key, spec)
        said = False

        def tell(status: ToolStatus) -> None:
            nonlocal said
            said = True
            if has_full_time or status is not ToolStatus.TIMEOUT:
                self._note(circuit, failed=is_fault(spec, status))

        try:
            yield tell
        except Stopped as stopped:
            if not said and is_fault(spec, stopped.status):
                tell(stopped.status)
            raise
        except Exception:
            if not said:
                self._note(circuit, failed=True)
            raise
        finally:
            if probe:
                circuit.probing = False

    def _enter(self, key: Key, spec: ToolSpec) -> tuple[_Circuit, bool]:
        circuit = self._circuits.setdefault(key, _Circuit())
        if circuit.failures < self._most:
            return circuit, False
        left = circuit.opened + circuit.rest - self._clock()
        if left > 0 or circuit.probing:
            when = (
                f"it is tried again in {left:.0f} seconds"
                if left > 0
                else "it is being tried again just now"
            )
            raise Stopped(
                ToolStatus.CIRCUIT_OPEN,
                f"{spec.name} failed {circuit.failures} times in a row; {when}",
            )
        circuit.probing = True
        return circuit, True

    def _note(self, circuit: _Circuit, *, failed: bool) -> None:
        if not failed:
            circuit.failures, circuit.rest = 0, 0.0
            return
        circuit.failures += 1
        if circuit.failures >= self._most:
            circuit.opened = self._clock()
            circuit.rest = min(circuit.rest * 2, _LONGEST) if circuit.rest else self._rest
