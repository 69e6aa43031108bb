"""Running one command inside the sandbox, watched. Standard library only: part of the executor.

Only one command runs at a time, and nothing else lives in this pid namespace: so `kill(-1)` ends
exactly the command and all that it started, daemons included.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import time

from moothall.sandbox_runtime.command_result import CommandResult
from moothall.sandbox_runtime.confinement import spare_the_others
from moothall.sandbox_runtime.pressure import Contention
from moothall.sandbox_runtime.processes import (
    PeakUsage,
    kill_all,
    read_pss,
    running_commands,
    sample,
)

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from moothall.sandbox_runtime.checking import RunningCheck
    from moothall.sandbox_runtime.rpc_channel import RpcChannel
    from moothall.sandbox_runtime.shell import Output


_SAMPLE_SECONDS = 0.05
_OUTPUT_FACTOR = 100  # a command that prints this many times what is kept is stopped
_HINT_BYTES = 4000
_NICE = 5
_INTERRUPT_SECONDS = 2.0
_LINGER_SECONDS, _LINGER_STEP_MS = 0.5, 20
_NAMED = 5
_STILL_SECONDS = 2.0  # that the watch wakes late
_NEVER = float("inf")
_BY_SHELL = 128  # a shell's exit code is this plus the signal that ended its command

# Texts: compiling them costs start time, and only a command that fails needs them.
_HINTS = (
    ("memory", r"(?im)^(?:\w+\.)?MemoryError|Cannot allocate memory|out of memory"),
    (
        "disk",
        # As C, Python, Go, Rust, Java, Node and shells spell it.
        (
            r"(?i)no space left on device|file too large|file size limit exceeded|disk quota "
            r"exceeded|\b(?:ENOSPC|EFBIG|EDQUOT)\b"
        ),
    ),
    ("processes", r"Resource temporarily unavailable|can't start new thread|fork: retry"),
)


# No dataclasses here: what makes them costs the executor more time at its start than all of its own
# code.
class CommandLimits:
    """Limits of one command; `in_cgroup`: the kernel sees to its memory; `any_output`: output is
    unlimited, and only the kept part is bounded. Time spent waiting for a core does not count in
    `wall_seconds`; `most_seconds` is the hard limit.
    """

    __slots__ = (
        "any_output",
        "cpu_seconds",
        "file_bytes",
        "in_cgroup",
        "memory_bytes",
        "most_seconds",
        "output_bytes",
        "processes",
        "wall_seconds",
    )

    def __init__(
        self,
        *,
        wall_seconds: float,
        cpu_seconds: float,
        output_bytes: int,
        memory_bytes: int,
        processes: int,
        file_bytes: int,
        in_cgroup: bool,
        most_seconds: float = 0.0,
        any_output: bool = False,
    ) -> None:
        self.most_seconds, self.any_output = max(most_seconds, wall_seconds), any_output
        self.wall_seconds, self.cpu_seconds = wall_seconds, cpu_seconds
        self.output_bytes, self.memory_bytes = output_bytes, memory_bytes
        self.processes, self.file_bytes, self.in_cgroup = processes, file_bytes, in_cgroup


class _Kept:
    """The head and the tail of what is printed."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def bytes(self) -> bytes:
        cut = self.total - len(self._head) - self._half
        if cut <= 0:
            return bytes(self._head + self._tail)
        return (
            bytes(self._head)
            + f"\n[… {cut} bytes cut …]\n".encode()
            + bytes(self._tail[-self._half :])
        )


def _become(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], walls: CommandLimits
) -> NoReturn:
    """In the child: set limits, run."""
    try:
        os.chdir(cwd)
        cpu = max(1, round(walls.cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (walls.file_bytes, walls.file_bytes))
        if not walls.in_cgroup:
            resource.setrlimit(resource.RLIMIT_DATA, (walls.memory_bytes, walls.memory_bytes))
        os.nice(_NICE)
        # Python ignores the first two, and the executor the third; other programs expect the
        # default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        spare_the_others()
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is what we want
    except OSError as error:
        os.write(2, f"cannot run {argv[0]!r}: {error.strerror}\n".encode())
    os._exit(127)


def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    walls: CommandLimits,
    wakeup: int,
    stopped: Callable[[], str],
    side: RpcChannel | None = None,
    reader: RunningCheck | None = None,
    shell: Output | None = None,
) -> CommandResult:
    """Run a command to its end, or to the first wall. `wakeup` is a descriptor to listen to
    meanwhile:
    when it is readable `stopped` is called, and what it returns, unless empty, ends the command
    with that status.
    `shell` keeps the output of a command of the shell, which is interrupted before it is ended, so
    that it can say where it was.
    """
    return _watch(
        lambda: _become(argv, cwd, env, walls),
        walls,
        wakeup,
        stopped,
        side,
        reader=reader,
        shell=shell,
    )


def call(
    function: Callable[[], bytes], *, walls: CommandLimits, wakeup: int, stopped: Callable[[], str]
) -> CommandResult:
    """Run a function of ours in a child, so that it can be stopped. Its bytes come back as the
    output.
    """

    def child() -> NoReturn:
        code = 1
        try:
            cpu = max(1, round(walls.cpu_seconds))
            resource.setrlimit(
                resource.RLIMIT_CPU, (cpu, cpu + 1)
            )  # the first is a signal that says why
            data = memoryview(function())
            while data:
                data = data[os.write(1, data) :]
            code = 0
        finally:
            os._exit(code)

    return _watch(child, walls, wakeup, stopped)


def _watch(
    child: Callable[[], NoReturn],
    walls: CommandLimits,
    wakeup: int,
    stopped: Callable[[], str],
    side: RpcChannel | None = None,
    *,
    reader: RunningCheck | None = None,
    shell: Output | None = None,
) -> CommandResult:
    begun = time.monotonic()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        silence = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((silence, 0), (writing, 1), (writing, 2)):
            os.dup2(source, target)
        child()
    os.close(writing)
    if side:
        side.close_theirs()
    watch = _Watch(
        reading, os.pidfd_open(pid), wakeup, walls=walls, begun=begun, side=side, reader=reader
    )
    left: list[str] = []
    if shell:
        watch.kept = shell
    try:
        status = watch.until_end(stopped)
        seconds = time.monotonic() - begun
        if shell and status == "timeout":
            watch.interrupt()
        if status:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, waited, used = os.wait4(pid, 0)
        if waited:  # what it left tells why, if it was quicker than the samples
            sample(watch.seen)
        if shell and not status:
            left = watch.linger()
        kill_all()
        watch.drain()
        if reader:
            watch.kept.add(reader.end())
    finally:
        watch.close()
    output = watch.kept.bytes()
    code = os.waitstatus_to_exitcode(waited)
    cpu = max(used.ru_utime + used.ru_stime, watch.seen.cpu_seconds)
    return CommandResult(
        status=status or explain_end(code, output, watch.seen, walls, cpu),
        exit_code=code,
        output=output,
        total=watch.kept.total,
        seconds=seconds,
        cpu_ms=round(cpu * 1000),
        max_rss_bytes=max(used.ru_maxrss * 1024, watch.seen.memory),
        contended=watch.contended,
        left=tuple(left[:_NAMED]),
    )


class _Watch:
    """Follows a child: its output, its end, its walls."""

    def __init__(
        self,
        reading: int,
        leader: int,
        wakeup: int,
        *,
        walls: CommandLimits,
        begun: float,
        side: RpcChannel | None,
        reader: RunningCheck | None,
    ) -> None:
        self.kept: _Kept | Output = _Kept(walls.output_bytes)
        self.seen = PeakUsage()
        self._reading, self._leader, self._wakeup = reading, leader, wakeup
        self._walls, self._deadline, self._last = (
            walls,
            begun + walls.wall_seconds,
            begun + walls.most_seconds,
        )
        self._contention, self._looked = Contention(), 0.0
        self.contended = self._forgiven = 0.0
        self._side, self._hears = side, False
        self._reader = reader
        self._next_sample = time.monotonic() + _SAMPLE_SECONDS
        self._poll = select.poll()
        for descriptor in (reading, leader, wakeup):
            self._poll.register(descriptor, select.POLLIN)

    def until_end(self, stopped: Callable[[], str]) -> str:
        """Return '' when the child ended by itself, or the status for which it has to be
        stopped.
        """
        due = time.monotonic()
        while True:
            now = time.monotonic()
            self._forgive(now - due)
            if now >= self._until() and not self._has_more_time():
                return "timeout"
            self._listen()
            due = max(now, min(self._until(), self._next_sample))
            ready = {at for at, _ in self._poll.poll((due - now) * 1000)}
            if self._reading in ready:
                self._read()
            if self._side and self._side.ours in ready:
                self._side.hear()
            if self._wakeup in ready and (reason := stopped()):
                return reason
            if self._leader in ready:
                return ""
            if broken := self._broken_wall():
                return broken

    def _forgive(self, late: float) -> None:
        """Give back the time in which all stood still, as on a machine that was paused."""
        if late > _STILL_SECONDS:
            self._deadline += late
            self._last += late
            if self._reader:
                self._reader.forgive(late)

    def _has_more_time(self) -> bool:
        """Give back the time in which it waited for a core."""
        self._note_contention()
        owed = self.contended - self._forgiven
        more = min(owed, self._last - self._deadline)
        if self._side or more < _SAMPLE_SECONDS:
            if owed < _SAMPLE_SECONDS:
                self.contended = 0.0  # all waiting was given back, so it had its full time
            return False
        self._forgiven = self.contended
        self._deadline += more
        return True

    def _note_contention(self) -> None:
        seconds = self._contention.seconds()
        if self.seen.runnable:
            self.contended += seconds - self._looked
        self._looked = seconds

    def _until(self) -> float:
        """Return when its time is over; while it waits for an answer, never."""
        if self._side is None:
            return self._deadline
        return _NEVER if self._side.waiting else self._deadline + self._side.waited

    def _listen(self) -> None:
        if self._side and self._hears != self._side.listening:
            self._hears = not self._hears
            if self._hears:
                self._poll.register(self._side.ours, select.POLLIN)
            else:
                self._poll.unregister(self._side.ours)

    def interrupt(self) -> None:
        """Interrupt the command as Ctrl-C does, and take what it prints until it has ended, for a
        moment at most.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGINT)
        poll, end = select.poll(), time.monotonic() + _INTERRUPT_SECONDS
        poll.register(self._reading, select.POLLIN)
        poll.register(self._leader, select.POLLIN)
        while (rest := end - time.monotonic()) > 0:
            ready = {at for at, _ in poll.poll(rest * 1000)}
            if self._reading in ready and not self._take():
                poll.unregister(self._reading)
            if self._leader in ready:
                return

    def linger(self) -> list[str]:
        """Give what the command left running, such as a `tee`, a moment to end by itself; return
        what did not.
        """
        poll, end = select.poll(), time.monotonic() + _LINGER_SECONDS
        poll.register(self._reading, select.POLLIN)
        while (left := running_commands()) and time.monotonic() < end:
            if poll.poll(_LINGER_STEP_MS) and not self._take():
                poll.unregister(self._reading)
        return left

    def drain(self) -> None:
        """Take what is still in the pipe, now that nobody writes to it any more."""
        os.set_blocking(self._reading, False)
        with contextlib.suppress(OSError):
            while data := os.read(self._reading, 1 << 16):
                self._keep(data)

    def close(self) -> None:
        """Close what the watch opened."""
        os.close(self._reading)
        os.close(self._leader)

    def _read(self) -> None:
        if not self._take():
            self._poll.unregister(self._reading)

    def _take(self) -> bool:
        """Keep what is in the pipe; False where nobody can write to it any more."""
        data = os.read(self._reading, 1 << 16)
        if data:
            self._keep(data)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        self.kept.add(self._reader.feed(data) if self._reader else data)

    def _broken_wall(self) -> str:
        if (
            self.kept.total > self._walls.output_bytes * _OUTPUT_FACTOR
            and not self._walls.any_output
        ):
            return "output"
        begun = time.monotonic()
        if begun < self._next_sample:
            return ""
        sample(self.seen)
        self._note_contention()
        now = time.monotonic()
        self._next_sample = now + max(_SAMPLE_SECONDS, 10 * (now - begun))
        return _broken_limit(self.seen, self._walls) or (
            self._reader.check_stuck(self.contended) if self._reader else ""
        )


def _broken_limit(seen: PeakUsage, walls: CommandLimits) -> str:
    if seen.processes >= walls.processes:
        return "processes"
    if seen.memory > walls.memory_bytes and not walls.in_cgroup:
        # Pages that forked processes share were counted for each: look closer before judging.
        seen.memory = read_pss()
        if seen.memory > walls.memory_bytes:
            return "memory"
    return "cpu" if seen.cpu_seconds > walls.cpu_seconds else ""


def explain_end(code: int, output: bytes, seen: PeakUsage, walls: CommandLimits, cpu: float) -> str:
    """Return the status of a command that ended by itself: the limit that it hit, or 'success'
    whatever its exit code.
    """
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu >= walls.cpu_seconds):
        return "cpu"
    if code in {-signal.SIGXFSZ, _BY_SHELL + signal.SIGXFSZ}:
        return "disk"
    if code != 0:
        tail = output[-_HINT_BYTES:].decode("utf-8", "replace")
        for status, words in _HINTS:
            if re.search(words, tail) and (
                status != "processes" or seen.processes * 2 >= walls.processes
            ):
                return status
    return "success"
