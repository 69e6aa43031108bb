"""The clock of a case. Runs under Python 3.7 and on."""

from __future__ import annotations

import signal
import time

_LATE_SECONDS = 2.0


class Clock:
    """Rings SIGALRM after `seconds`. Time in which the process stood still, as a machine that was paused does, is not the case's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start()

    def has_stood_still(self) -> bool:
        """Whether it rang late for a process that computed nothing meanwhile; the case has its time once more then."""
        late = time.monotonic() - self._begun - self._seconds
        still = late > _LATE_SECONDS and time.process_time() - self._computed < self._seconds
        if still:
            self._start()
        return still

    def _start(self) -> None:
        self._begun, self._computed = time.monotonic(), time.process_time()
        # Again each second: whoever passes over what is raised is told once more.
        signal.setitimer(signal.ITIMER_REAL, self._seconds, 1.0)


def stop() -> None:
    """Let it ring no more."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
