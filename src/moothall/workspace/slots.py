"""Slots for commands: they limit how many run at a time on this machine, across all processes of
one user.

A slot is a file lock, so the kernel frees it when its holder ends, even by kill -9. Each waiting
process writes the start time of its oldest waiting command to a file of its own; younger commands
of other processes let it go first. A stopped process (SIGSTOP) no longer touches its files; its
slots and its place in the queue then do not count.
"""

from __future__ import annotations

import asyncio
import bisect
import fcntl
import itertools
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from moothall.concurrency import off_the_clock
from moothall.processes import try_lock
from moothall.telemetry import get_logger, metrics

_log = get_logger(__name__)

_POLL_SECONDS = 0.05
_BEAT_SECONDS = 1.0
_STOPPED_SECONDS = 10.0
"""A lock without a beat for so long belongs to a stopped process."""
_SILENT_SECONDS = 2.0
"""A process that has not looked at the slots for so long loses its place in the queue."""
_ABANDONED_SECONDS = 600.0
_INTERACTIVE_SECONDS = 600.0
_SLOT_PREFIX, _EXCLUSIVE_LOCK, _QUEUE_PREFIX = "slot-", "alone", "waiting-"


class QueuePlace:
    """The place of a piece of work in the queue for slots, such as a deliberation.

    since: when it began to wait (Unix time); 0 means no place. delay: returns how many seconds
    later its commands queue. The oldest go first.
    """

    def __init__(self, since: float, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.since = since
        self._delay = delay
        self._start_times: list[float] = []

    @property
    def queued_at(self) -> float:
        """Since when its commands count as waiting (Unix time); 0 without a place."""
        return self.since and self.since + self._delay()

    @property
    def waited_seconds(self) -> float:
        """How long the first of its waiting commands has waited; 0 if none waits."""
        return time.monotonic() - min(self._start_times) if self._start_times else 0.0

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count the block as the wait of a command."""
        start = time.monotonic()
        self._start_times.append(start)
        try:
            yield
        finally:
            self._start_times.remove(start)


_place: ContextVar[QueuePlace | None] = ContextVar("place", default=None)


@contextmanager
def queued(place: QueuePlace) -> Iterator[None]:
    """Let commands in the block queue for slots at this place."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def queued_since(moment: float) -> AbstractContextManager[None]:
    """Let commands in the block queue as if they had waited since `moment` (Unix time)."""
    return queued(QueuePlace(moment))


def queue_place() -> QueuePlace:
    """Return the place of commands here."""
    return _place.get() or QueuePlace(0.0)


def slots_folder(fallback: Path) -> Path:
    """Return the slots folder of this machine and user, creating it; `fallback` if it cannot be in
    /tmp.
    """
    shared = Path(f"/tmp/moothall-{os.geteuid()}")  # noqa: S108 - one place whatever TMPDIR is; its owner is checked
    with suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        if _is_private(shared):
            (shared / "slots").mkdir(mode=0o700, exist_ok=True)
            return shared / "slots"
    fallback.mkdir(mode=0o700, parents=True, exist_ok=True)
    _log.warning(
        "slots are shared within this data directory only: other users can write to the folder",
        folder=str(shared),
    )
    return fallback


def _is_private(folder: Path) -> bool:
    """Return whether a folder belongs to this user and only this user can write to it."""
    status = folder.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )


@dataclass(order=True, slots=True)
class _WaitingCommand:
    """A waiting command; the oldest comes first."""

    queued_at: float
    number: int = field(default_factory=itertools.count().__next__)


class Slots:
    """The slots of this machine, for one process. Belongs to one event loop.

    find_folder: returns the folder of the files, creating it.
    count: how many commands run at a time. Processes with other counts share the files; each uses
    the first `count`.
    """

    def __init__(self, find_folder: Callable[[], Path], count: int) -> None:
        self.count = count
        self._find_folder = find_folder
        self._folder = find_folder()
        self._waiting: list[_WaitingCommand] = []
        self._locked: set[int] = set()
        self._freed = asyncio.Event()
        self._beating: asyncio.TimerHandle | None = None
        self._queue_name = f"{_QUEUE_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        self._published = 0.0

    @property
    def waiting(self) -> int:
        """How many commands of this process wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many slots this process holds."""
        return len(self._locked)

    @property
    def _queue_file(self) -> Path:
        return self._folder / self._queue_name

    @asynccontextmanager
    async def hold(self, queued_at: float = 0.0, *, alone: bool = False) -> AsyncIterator[Slot]:
        """Wait for a slot and hold it. With `alone`, hold all slots, so that no other command runs
        meanwhile.

        The place of a surrounding block overrides `queued_at`. A command without a place is
        interactive: a caller waits for it, so it counts as waiting for ten minutes at least. Time
        limits around this (`concurrency.TimeLimit`) do not count the wait.
        """
        now = time.time()
        interactive_since = min(queued_at or now, now - _INTERACTIVE_SECONDS)
        slot = Slot(self, queue_place().queued_at or interactive_since, alone=alone)
        try:
            await slot.acquire()
            yield slot
        finally:
            slot.release()

    async def acquire(self, queued_at: float, *, alone: bool) -> dict[str, int]:
        """Wait for a slot, or for all, and return the descriptors of the locked files by name.
        `release` unlocks them.
        """
        with off_the_clock(), queue_place().wait(), metrics.SLOT_SECONDS.time():
            locks = await self._wait_for_slots(queued_at, alone=alone)
            try:
                while locks and alone and not self._lock_all(locks):  # noqa: ASYNC110 - it happens in another process
                    await asyncio.sleep(_POLL_SECONDS)
            except OSError as error:
                _log.warning(
                    "a command does not run alone", folder=str(self._folder), reason=str(error)
                )
            except BaseException:
                self.release(locks)
                raise
        return locks

    async def _wait_for_slots(self, queued_at: float, *, alone: bool) -> dict[str, int]:
        """Wait for this command's turn and take a slot; with `alone`, the lock that keeps others
        from taking slots.
        """
        command = _WaitingCommand(queued_at)
        bisect.insort(self._waiting, command)
        try:
            while True:
                is_first = self._waiting[0] is command
                if is_first and (locks := self._attempt(queued_at, alone=alone)) is not None:
                    return locks
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS if is_first else None):
                        await self._freed.wait()
        finally:
            self._waiting.remove(command)
            if not self._waiting:
                with suppress(OSError):
                    self._queue_file.unlink(missing_ok=True)
                self._published = 0.0
            self._freed.set()

    def _attempt(self, queued_at: float, *, alone: bool) -> dict[str, int] | None:
        """Try to take a slot; None means wait. If slots do not work, as on a full disk, the command
        runs without one.
        """
        try:
            return self._try_lock(queued_at, alone=alone)
        except FileNotFoundError:  # the folder was cleared away
            self._folder, self._published = self._find_folder(), 0.0
            return None
        except OSError as error:
            _log.warning(
                "a command runs without a slot", folder=str(self._folder), reason=str(error)
            )
            return {}

    def _try_lock(self, queued_at: float, *, alone: bool) -> dict[str, int] | None:
        """Take a slot, or the `alone` lock. Return None if none is free or an older command waits
        in another process.
        """
        if self._older_waits(queued_at):
            return None
        lock = self._lock(_EXCLUSIVE_LOCK)
        if lock < 0 and (alone or not self._is_stopped(_EXCLUSIVE_LOCK)):
            return None
        if alone:
            return {_EXCLUSIVE_LOCK: lock}
        try:
            return self._lock_one() or None
        finally:
            self._unlock(lock)

    def _lock_one(self) -> dict[str, int]:
        """Lock a free slot. An extra one replaces each slot whose holder is stopped."""
        count, number = self.count, 0
        while number < count:
            name = f"{_SLOT_PREFIX}{number}"
            if (descriptor := self._lock(name)) >= 0:
                return {name: descriptor}
            count += self._is_stopped(name)
            number += 1
        return {}

    def _lock_all(self, locks: dict[str, int]) -> bool:
        """Lock the free slots and add them to `locks`. Return whether only slots of stopped
        processes are missing.
        """
        names = {f"{_SLOT_PREFIX}{number}" for number in range(self.count)} | {
            path.name for path in self._folder.glob(f"{_SLOT_PREFIX}*")
        }
        for name in names - locks.keys():
            if (descriptor := self._lock(name)) >= 0:
                locks[name] = descriptor
        return all(name in locks or self._is_stopped(name) for name in names)

    def _lock(self, name: str) -> int:
        """Lock a file and return its descriptor, -1 if another holds it."""
        descriptor = os.open(
            self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        if not try_lock(descriptor):
            os.close(descriptor)
            return -1
        os.utime(descriptor)
        self._locked.add(descriptor)
        if self._beating is None:
            self._beating = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._touch_locks)
        return descriptor

    def _unlock(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._locked.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # at once, even if a starting process has a copy
            os.close(descriptor)

    def release(self, locks: dict[str, int]) -> None:
        """Unlock the files of a command."""
        for descriptor in locks.values():
            self._unlock(descriptor)
        locks.clear()
        self._freed.set()

    def _touch_locks(self) -> None:
        """Show that the holder of these locks is running."""
        for descriptor in self._locked:
            os.utime(descriptor)
        self._beating = (
            asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._touch_locks)
            if self._locked
            else None
        )

    def _is_stopped(self, name: str) -> bool:
        return self._age(self._folder / name) > _STOPPED_SECONDS

    @staticmethod
    def _age(path: Path) -> float:
        try:
            return time.time() - path.stat().st_mtime
        except OSError:
            return 0.0

    def _older_waits(self, queued_at: float) -> bool:
        """Publish the start time of this process's oldest waiting command; return whether another
        process has an older one.
        """
        if queued_at == self._published and self._queue_file.exists():
            os.utime(self._queue_file)
        else:
            temporary = self._queue_file.with_suffix(".new")
            temporary.write_text(repr(queued_at), encoding="ascii")
            temporary.replace(self._queue_file)
            self._published = queued_at
        return any(
            self._reads_older(path, queued_at)
            for path in self._folder.glob(f"{_QUEUE_PREFIX}*")
            if path != self._queue_file and not path.suffix
        )

    def _reads_older(self, path: Path, queued_at: float) -> bool:
        age = self._age(path)
        if age > _ABANDONED_SECONDS:  # its process was killed
            path.unlink(missing_ok=True)
        try:
            return age < _SILENT_SECONDS and float(path.read_text(encoding="ascii")) < queued_at
        except (OSError, ValueError):
            return False


class Slot:
    """A place among the running commands. It can be released while the command waits for something,
    and acquired again.
    """

    def __init__(self, slots: Slots, queued_at: float, *, alone: bool) -> None:
        self._slots = slots
        self._queued_at = queued_at
        self._alone = alone
        self._locks: dict[str, int] = {}

    async def acquire(self) -> None:
        """Wait for the slot."""
        self._locks = await self._slots.acquire(self._queued_at, alone=self._alone)

    def release(self) -> None:
        """Let others use the slot."""
        self._slots.release(self._locks)
