"""The owner of a host: a host ends with the server that started it and with its raylet, and the
next server ends hosts that are left.

A host in a process of its own says in a file of the data directory who it is, and then looks
whether its server still lives: one that comes too late for the next server's look finds its own
server
dead. Processes are known by pid and start, so that nobody else is ever ended.
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

_END_SECONDS, _LOOK_SECONDS = 10.0, 0.5
_START_FIELD = (
    19  # of those after the name in /proc/PID/stat: when it started, in clock ticks since boot
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `place`: the boot of the machine and the namespace in which its pid means
    something; empty where that is not known.
    """

    pid: int
    started: int
    place: str

    def lives(self) -> bool:
        """Whether it is a process of this machine that has not ended."""
        return (
            bool(self.place and self.started)
            and self.place == _place()
            and _start_time(self.pid) == self.started
        )

    def open(self) -> int | None:
        """Return a pidfd of it for the caller to close; None where it has ended, is none of this
        machine, or this kernel has no pidfds.
        """
        if self.lives():
            with suppress(OSError, AttributeError):
                handle = os.pidfd_open(self.pid)
                if self.lives():
                    return handle
                os.close(handle)
        return None


def this_process() -> Process:
    """Return this one."""
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Return the process of this machine with this pid, which may have ended."""
    return Process(pid, _start_time(pid), _place())


@contextmanager
def registered(folder: Path, app: Process) -> Iterator[None]:
    """Be a host of `app`, which runs on this machine or elsewhere: a record lies in `folder`, and
    this process ends with its server.
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


def end_left(folder: Path) -> int:
    """End the hosts that are recorded in `folder`; return how many lived. Only for whoever holds
    the data directory. Blocks until they have ended.
    """
    found = 0
    for record in folder.glob("*.json"):
        try:
            host = Process(**json.loads(record.read_bytes()))
        except (OSError, ValueError, TypeError):
            record.unlink(missing_ok=True)  # torn by a kill: whoever wrote it finds its server dead
            continue
        if host.place != _place():
            continue  # of another machine, or of this one before it was started anew
        if host.lives():
            found += 1
            _kill(host)
            log.warning("a host of an earlier server was still alive; it is ended", pid=host.pid)
        record.unlink(missing_ok=True)
    return found


def _kill(process: Process) -> None:
    handle = process.open()
    with suppress(ProcessLookupError):
        if handle is None:
            os.kill(process.pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    _wait(process, handle, _END_SECONDS)


def _wait(process: Process, handle: int | None, seconds: float | None = None) -> None:
    """Wait until it has ended, by its pidfd where there is one; close that."""
    if handle is not None:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll(seconds and seconds * 1000)
        os.close(handle)
        return
    until = time.monotonic() + (seconds or math.inf)
    while process.lives() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


def end_with(other: Process) -> None:
    """Kill this process once another one of this machine has ended or become a zombie.

    A thread watches it, since a busy event loop must not keep this process alive.
    """

    def watch() -> None:
        _wait(other, other.open())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=f"end with {other.pid}", daemon=True).start()


def _start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 where it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if state in b"ZX" else int(rest[_START_FIELD - 1])
    except (OSError, IndexError, ValueError):
        return 0


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
