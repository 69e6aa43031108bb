"""The processes of a sandbox's pid namespace: seeing, counting and ending them. Standard library
only: part of the executor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

_TICKS = os.sysconf("SC_CLK_TCK")
_SHOWN = 100
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakUsage:
    """What the sampler saw at most."""

    __slots__ = ("cpu_seconds", "memory", "processes", "runnable")

    def __init__(self) -> None:
        self.processes = self.memory = 0
        self.cpu_seconds = 0.0
        self.runnable = True  # whether one of them wanted a core in the last sample


def kill_all() -> None:
    """End every process here but the executor and the namespace's init, and wait until they are
    gone.
    """
    for _ in range(200):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not others():
            return
        time.sleep(0.005)


def others() -> list[str]:
    """Return the pids of this namespace besides init and this process."""
    own = {"1", str(os.getpid())}
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in own]  # noqa: PTH208 - often; names are enough


def running_commands() -> list[str]:
    """Return the beginnings of the command lines of the processes here that have not ended, each
    once.
    """
    found: dict[str, None] = {}
    for pid in others():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as below
                ended = file.read().rpartition(b")")[2].split()[0] in b"ZX"
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as below
                words = file.read(_SHOWN).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if not ended:
            # A part of the shell has the command line of the whole, which names nothing.
            of_shell = any(word.startswith("moothall_session=") for word in words)
            found[
                "bash, a part of the command"
                if of_shell
                else " ".join(words).strip() or f"process {pid}"
            ] = None
    return list(found)


def sample(seen: PeakUsage) -> None:
    """Look at all processes here, and keep the most that was seen."""
    tasks, pages, ticks, runnable = 0, 0, 0, False
    for pid in others():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of times a second
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - as above
                sizes = file.read().split()
        except OSError:
            continue
        tasks += int(fields[17])
        runnable = runnable or fields[0] in b"RD" or (int(fields[17]) > 1 and _a_thread_runs(pid))
        ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        pages += int(sizes[1]) - int(sizes[2])
    seen.processes = max(seen.processes, tasks)
    seen.memory = max(seen.memory, pages * _PAGE)
    seen.cpu_seconds = max(seen.cpu_seconds, ticks / _TICKS)
    seen.runnable = runnable


def _a_thread_runs(pid: str) -> bool:
    """Whether a thread of a process is runnable."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - as above
                if file.read().rpartition(b")")[2].split()[0] in b"RD":
                    return True
    return False


def read_pss() -> int:
    """Return the bytes of all processes here, a page that several share divided among them."""
    total = 0
    for pid in others():
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123 - as above
                total += sum(
                    int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss_Anon:")
                )
        except OSError:
            continue  # gone meanwhile
    return total
