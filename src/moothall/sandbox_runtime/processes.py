"""The processes of a sandbox's pid namespace: listing, measuring and killing them. The time that
processes of this machine waited for a core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

# The processes of a sandbox's pid namespace: listing, measuring and killing them. Standard library
# only: part of the executor.


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_COMMAND_BYTES = 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PeakUsage:
    """The maximum usage that the sampler has seen."""

    __slots__ = ("cpu_seconds", "memory", "processes", "runnable")

    def __init__(self) -> None:
        self.processes = self.memory = 0
        self.cpu_seconds = 0.0
        self.runnable = True  # whether a process was runnable in the last sample


def kill_all() -> None:
    """Kill every process of this namespace except the executor and init, and wait until they are
    gone.
    """
    for _ in range(200):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not other_pids():
            return
        time.sleep(0.005)


def other_pids() -> list[str]:
    """Return the pids of this namespace except init and this process."""
    excluded = {"1", str(os.getpid())}
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in excluded]  # noqa: PTH208 - often; names are enough


def running_commands() -> list[str]:
    """Return the beginnings of the command lines of all running processes here, without
    duplicates.
    """
    commands: dict[str, None] = {}
    for pid in other_pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as below
                has_ended = file.read().rpartition(b")")[2].split()[0] in b"ZX"
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as below
                arguments = file.read(_COMMAND_BYTES).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if not has_ended:
            # A subshell has the shell's own command line, which names no program.
            is_shell_part = any(word.startswith("moothall_session=") for word in arguments)
            commands[
                "bash, a part of the command"
                if is_shell_part
                else " ".join(arguments).strip() or f"process {pid}"
            ] = None
    return list(commands)


def sample(peak: PeakUsage) -> None:
    """Sample all processes here and update the maximum usage."""
    tasks, pages, ticks, runnable = 0, 0, 0, False
    for pid in other_pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of times a second
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - as above
                sizes = file.read().split()
        except OSError:
            continue
        tasks += int(fields[17])
        runnable = (
            runnable or fields[0] in b"RD" or (int(fields[17]) > 1 and _has_runnable_thread(pid))
        )
        ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        pages += int(sizes[1]) - int(sizes[2])
    peak.processes = max(peak.processes, tasks)
    peak.memory = max(peak.memory, pages * _PAGE_BYTES)
    peak.cpu_seconds = max(peak.cpu_seconds, ticks / _TICKS_PER_SECOND)
    peak.runnable = runnable


def _has_runnable_thread(pid: str) -> bool:
    """Return whether a thread of a process is runnable."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - as above
                if file.read().rpartition(b")")[2].split()[0] in b"RD":
                    return True
    return False


def read_pss() -> int:
    """Return the bytes of all processes here, with shared pages divided among their users."""
    total = 0
    for pid in other_pids():
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123 - as above
                total += sum(
                    int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss_Anon:")
                )
        except OSError:
            continue  # gone meanwhile
    return total


# The time that processes of this machine waited for a core. Standard library only: part of the
# executor.


GENEROUS = 3
"""The factor by which a check may exceed its limit on a busy machine."""
BUSY = " while the machine was busy"
"""Marks a time limit that was hit because the machine was busy. `plugins/moothall_reporter.py` has
the same words."""
_FILE = "/proc/pressure/cpu"


class Contention:
    """The time since its creation in which some process waited for a core."""

    def __init__(self, file: str = _FILE) -> None:
        self._file = file
        self._started_at, self._initial_total = time.monotonic(), _read_total(file)

    def seconds(self) -> float:
        """Return the seconds. If the kernel does not count them, a load above the number of cores
        counts as all of the time.
        """
        passed, total = time.monotonic() - self._started_at, _read_total(self._file)
        if total is None or self._initial_total is None:
            return passed if os.getloadavg()[0] > len(os.sched_getaffinity(0)) else 0.0
        return max(0.0, min(passed, total - self._initial_total))


def _read_total(file: str) -> float | None:
    """Return the seconds since the start of the machine, None if the kernel does not count them."""
    try:
        with open(file, encoding="ascii") as text:  # noqa: PTH123 - pathlib costs the executor start time
            return int(text.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
