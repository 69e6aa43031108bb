"""The owner of a host. A host ends with the server that started it and with its raylet. The next
server kills leftover hosts.

A host process writes a record of itself to the data directory, and then checks whether its server
is alive. If it writes the record too late for the next server, its own server has ended already,
and it kills itself. A process is identified by its pid and start time, so that no other process is
killed.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from moothall.processes import write_private
from moothall.telemetry import get_logger

log = get_logger(__name__)

_END_SECONDS, _POLL_SECONDS = 10.0, 0.5
# The field of /proc/PID/stat after the name with the start time, in clock ticks since boot.
_START_FIELD = 19


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `place`: the boot id of the machine and the pid namespace; empty if they are
    unknown.
    """

    pid: int
    started: int
    place: str

    def is_alive(self) -> bool:
        """Return True if it is a process of this machine that has not ended."""
        return (
            bool(self.place and self.started)
            and self.place == _boot_and_namespace()
            and _start_time(self.pid) == self.started
        )

    def open(self) -> int | None:
        """Return a pidfd, which the caller must close; None if the process has ended or belongs to
        another machine, or if the kernel has no pidfds.
        """
        if self.is_alive():
            with suppress(OSError, AttributeError):
                handle = os.pidfd_open(self.pid)
                if self.is_alive():
                    return handle
                os.close(handle)
        return None


def this_process() -> Process:
    """Return the current process."""
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Return the process of this machine with a pid. It may have ended."""
    return Process(pid, _start_time(pid), _boot_and_namespace())


@contextmanager
def registered(folder: Path, app: Process) -> Iterator[None]:
    """Register this process in `folder` as a host of `app`. It ends with `app` if both run on the
    same machine.
    """
    me = this_process()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = folder / f"{me.pid}-{me.started}.json"
    write_private(record, json.dumps(asdict(me)))
    if app.place and app.place == me.place:
        end_with(app)
    try:
        yield
    finally:
        record.unlink(missing_ok=True)


def kill_leftover_hosts(folder: Path) -> int:
    """Kill the hosts that are recorded in `folder`, and return how many were alive. Block until
    they have ended. The caller must hold the lock of the data directory.
    """
    count = 0
    for record in folder.glob("*.json"):
        try:
            host = Process(**json.loads(record.read_bytes()))
        except (OSError, ValueError, TypeError):
            record.unlink(missing_ok=True)  # incomplete: its host finds that its server has ended
            continue
        if host.place != _boot_and_namespace():
            continue  # of another machine, or from before a reboot of this one
        if host.is_alive():
            count += 1
            _kill_process(host)
            log.warning("killed a leftover host of an earlier server", pid=host.pid)
        record.unlink(missing_ok=True)
    return count


def _kill_process(process: Process) -> None:
    handle = process.open()
    with suppress(ProcessLookupError):
        if handle is None:
            os.kill(process.pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    _wait_for_end(process, handle, _END_SECONDS)


def _wait_for_end(process: Process, handle: int | None, seconds: float | None = None) -> None:
    """Wait until a process has ended. Use its pidfd if there is one, and close it."""
    if handle is not None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(seconds and seconds * 1000)
        os.close(handle)
        return
    deadline = time.monotonic() + (seconds or math.inf)
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def end_with(process: Process) -> None:
    """Kill this process when another process of this machine has ended or become a zombie.

    A thread waits for that, because a busy event loop must not keep this process alive.
    """

    def watch() -> None:
        _wait_for_end(process, process.open())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=f"end with {process.pid}", daemon=True).start()


def _start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if state in b"ZX" else int(rest[_START_FIELD - 1])
    except (OSError, IndexError, ValueError):
        return 0


def _boot_and_namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
