"""The shared parts of the reporters of test cases: the file for their lines of JSON, and the time
limit of a case. Supports Python 3.7 and later.
"""

from __future__ import annotations

import json
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# The file. Tests may close all descriptors of their process, as daemons do, and open other files
# with the same number. The descriptor is therefore checked before each line, and the file reopened
# if needed.


_HIGH = 200
"""The lowest descriptor number to use; tests rarely close or use such numbers."""


class Lines:
    """A new file in `folder` for the lines of `runner`; without a folder, nothing is written."""

    def __init__(self, folder: str, runner: str) -> None:
        self._path = (
            os.path.join(folder, f"{runner}-{os.getpid()}-{time.time_ns()}.jsonl")
            if folder
            else os.devnull
        )
        self._file = self._open(0 if not folder else os.O_CREAT | os.O_EXCL)
        self._expected_identity = self._identity()

    def write(self, **line: object) -> None:
        """Write a line."""
        if self._identity() != self._expected_identity:
            self._file = self._open(0)
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _identity(self) -> object:
        try:
            file_stat = os.fstat(self._file)
        except OSError:
            return None
        return file_stat.st_dev, file_stat.st_ino

    def _open(self, extra_flags: int) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | extra_flags, 0o644)
        try:
            import fcntl

            high_fd = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        except (ImportError, OSError):
            return file
        os.close(file)
        return high_fd


# The time limit.


_LATE_SECONDS = 2.0
_GENEROUS = 6  # the factor by which a case may exceed its limit on a busy machine
_IDLE = 0.1  # share of the time; a case that needs a core for less is only waiting
_IDLE_LOOKS = 3
"""A case is only waiting if so many looks in a row find it idle. A child that has just ended leaves
no thread that runs until its parent gets a core again."""
_MIN_SECONDS, _REPEAT_SECONDS = 0.2, 1.0
# Kept here because tests may replace them.
_open, _read, _close, _listdir, _getpid = os.open, os.read, os.close, os.listdir, os.getpid
_load, _cores = (
    os.getloadavg,
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
)
_now, _process, _thread = (
    time.monotonic,
    time.process_time,
    getattr(time, "thread_time", time.process_time),
)


class Clock:
    """Rings SIGALRM after `seconds`. Time in which the process stood still, as on a paused machine,
    does not count. Time spent waiting for a core does not count either, up to `_GENEROUS` times
    `seconds` in all, unless the case has computed for `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self.remark = ""
        """Set at the end of the time if the machine was too busy for the case to use it."""
        self._seconds = seconds
        self._idle_looks = 0
        self._hard_deadline = _now() + _GENEROUS * seconds
        self._start()

    def has_more_time(self) -> bool:
        """Return whether the alarm rang too early. If so, it will ring again."""
        has_more = self._stood_still() or self._was_kept_waiting()
        if not has_more:
            self._due = _now() + _REPEAT_SECONDS
        return has_more

    def _stood_still(self) -> bool:
        """Return whether the alarm was late for a process that computed nothing meanwhile. The case
        then gets its time again.
        """
        late = _now() - self._due
        stood_still = late > _LATE_SECONDS and _process() - self._start_cpu[0] < self._seconds
        if stood_still:
            self._hard_deadline += max(0.0, late - self._contended())
            self._start()
        return stood_still and _now() < self._hard_deadline

    def _was_kept_waiting(self) -> bool:
        now = _now()
        passed = now - self._started_at
        remaining = self._seconds - passed + self._contended()
        process, thread = _process() - self._start_cpu[0], _thread() - self._start_cpu[1]
        waited = _since(self._delay, _delay())
        if remaining < _MIN_SECONDS or thread >= self._seconds:
            return False
        idle = waited is not None and process + waited < _IDLE * passed and not any(_others_run())
        self._idle_looks = self._idle_looks + 1 if idle else 0
        if self._idle_looks >= _IDLE_LOOKS:
            return False
        if now >= self._hard_deadline:
            self.remark = " while the machine was busy"
            return False
        if idle:
            remaining = _MIN_SECONDS
        self._ring(min(remaining, self._hard_deadline - now))
        return True

    def _contended(self) -> float:
        """Return the seconds since the start in which some process of the machine waited for a
        core.
        """
        waited = _since(self._pressure, _pressure())
        if waited is None:  # this kernel does not count it
            waited = _now() - self._started_at if _load()[0] > _cores else 0.0
        return waited

    def _start(self) -> None:
        self._started_at, self._start_cpu = _now(), (_process(), _thread())
        self._pressure, self._delay = _pressure(), _delay()
        self._ring(self._seconds)

    def _ring(self, seconds: float) -> None:
        self._due = _now() + seconds
        # Repeated each second, for code that ignores the exception.
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), _REPEAT_SECONDS)


def stop() -> None:
    """Stop the alarm."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _pressure() -> float | None:
    """Return the seconds since the start of the machine in which some process waited for a core."""
    try:
        return int(_text("/proc/pressure/cpu").splitlines()[0].rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def _delay() -> float | None:
    """Return the seconds that this process's first thread has waited for a core."""
    try:
        return int(_text("/proc/self/schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _others_run() -> Iterator[bool]:
    """Yield for each visible thread except this process's first whether it is runnable."""
    own_pid = str(_getpid())
    for pid in filter(str.isdigit, _listdir("/proc")):
        try:
            for thread in _listdir(f"/proc/{pid}/task"):
                if thread != own_pid:
                    yield (
                        _text(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[0]
                        in "RD"
                    )
        except (OSError, IndexError):
            continue  # gone meanwhile


def _text(path: str) -> str:
    descriptor = _open(path, os.O_RDONLY)
    try:
        return _read(descriptor, 4096).decode("ascii", "replace")
    finally:
        _close(descriptor)
