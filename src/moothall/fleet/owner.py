"""Whose a host is: it ends with the house that started it, and the next house ends what is left of an older one.

A host in a process of its own says in a file of the data directory who it is, and then looks whether its house still lives: one that comes too late
for the next house's look finds its own house dead. Processes are known by pid and start, so that nobody else is ever ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from moothall.telemetry import get_logger

log = get_logger(__name__)

_END_MS = 10_000
_START_FIELD = 19  # of those after the name in /proc/PID/stat: when it started, in clock ticks since boot


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `place`: the boot of the machine and the namespace in which its pid means something; empty where that is not known."""

    pid: int
    started: int
    place: str

    def open(self) -> int | None:
        """Return a pidfd of it for the caller to close, None where it has ended or is none of this machine."""
        if not self.place or self.place != _place():
            return None
        with suppress(OSError):
            handle = os.pidfd_open(self.pid)
            if _started(self.pid) == self.started:
                return handle
            os.close(handle)
        return None


def this_process() -> Process:
    """Return this one."""
    return Process(os.getpid(), _started(os.getpid()), _place())


@contextmanager
def registered(folder: Path, house: Process) -> Iterator[None]:
    """Be a host of `house`, which runs on this machine or elsewhere: a record lies in `folder`, and this process ends with its house."""
    me = this_process()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = folder / f"{me.pid}-{me.started}.json"
    with os.fdopen(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(asdict(me), file)
    if house.place and house.place == me.place:
        _end_with(house.open())
    try:
        yield
    finally:
        record.unlink(missing_ok=True)


def end_left(folder: Path) -> int:
    """End the hosts that are recorded in `folder`; return how many lived. Only for whoever holds the data directory. Blocks until they have ended."""
    found = 0
    for record in folder.glob("*.json"):
        try:
            host = Process(**json.loads(record.read_bytes()))
        except (OSError, ValueError, TypeError):
            record.unlink(missing_ok=True)  # torn by a kill: whoever wrote it finds its house dead
            continue
        if host.place != _place():
            continue  # of another machine, or of this one before it was started anew
        if (handle := host.open()) is not None:
            found += 1
            _kill(handle)
            log.warning("a host of an earlier house was still alive; it is ended", pid=host.pid)
        record.unlink(missing_ok=True)
    return found


def _kill(handle: int) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll(_END_MS)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _end_with(house: int | None) -> None:
    """Kill this process when the one behind a pidfd ends, or is gone already. In a thread: a busy event loop must not keep it alive."""

    def watch() -> None:
        if house is not None:
            waiting = select.poll()
            waiting.register(house, select.POLLIN)
            waiting.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="house", daemon=True).start()


def _started(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_START_FIELD])
    except (OSError, IndexError, ValueError):
        return 0


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
