"""Runs and supervises one command inside the sandbox. Standard library only: part of the executor.

Only one command runs at a time, and nothing else is in this pid namespace. `kill(-1)` therefore
ends exactly the command and everything that it started, daemons included.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import time

from moothall.sandbox_runtime.checks import CommandResult
from moothall.sandbox_runtime.confinement import block_signals_to_all
from moothall.sandbox_runtime.processes import (
    Contention,
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

    from moothall.sandbox_runtime.check_run import RunningCheck
    from moothall.sandbox_runtime.protocol import RpcChannel
    from moothall.sandbox_runtime.shell import Output


_SAMPLE_SECONDS = 0.05
_OUTPUT_FACTOR = 100  # a command is stopped at this multiple of the kept output
_HINT_BYTES = 4000
_NICE = 5
_INTERRUPT_SECONDS = 2.0
_LINGER_SECONDS, _LINGER_STEP_MS = 0.5, 20
_MAX_NAMED_PROCESSES = 5
_STALL_SECONDS = 2.0  # of delay that count as a stall
_NEVER = float("inf")
_SHELL_SIGNAL_BASE = 128  # a shell's exit code is this plus the signal that ended its command

# Not compiled: that costs start time, and only failed commands need the patterns.
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


# No dataclasses here: importing their module would double the executor's start time.
class CommandLimits:
    """The limits of a command. `in_cgroup`: the kernel enforces the memory limit. `any_output`:
    output is unlimited, only the kept part is bounded. Time spent waiting for a core does not count
    as `wall_seconds`; `most_seconds` is the hard limit.
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


class _OutputBuffer:
    """The head and the tail of the output."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        remaining = self._half - len(self._head)
        self._head += data[:remaining]
        self._tail += data[remaining:] if remaining > 0 else data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def bytes(self) -> bytes:
        cut_bytes = self.total - len(self._head) - self._half
        if cut_bytes <= 0:
            return bytes(self._head + self._tail)
        return (
            bytes(self._head)
            + f"\n[… {cut_bytes} bytes cut …]\n".encode()
            + bytes(self._tail[-self._half :])
        )


def _exec_command(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], limits: CommandLimits
) -> NoReturn:
    """Set the limits and execute the command, in the child."""
    try:
        os.chdir(cwd)
        cpu = max(1, round(limits.cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
        if not limits.in_cgroup:
            resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
        os.nice(_NICE)
        # Python ignores the first two, and the executor the third; other programs expect the
        # defaults.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        block_signals_to_all()
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is what we want
    except OSError as error:
        os.write(2, f"cannot run {argv[0]!r}: {error.strerror}\n".encode())
    os._exit(127)


def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    limits: CommandLimits,
    wakeup: int,
    stopped: Callable[[], str],
    side: RpcChannel | None = None,
    reader: RunningCheck | None = None,
    shell: Output | None = None,
) -> CommandResult:
    """Run a command until it ends or exceeds a limit. When the descriptor `wakeup` is readable,
    `stopped` is called; a non-empty result ends the command with that status. `shell` keeps the
    output of a shell command, which is interrupted before it is killed, so that it can print its
    position.
    """
    return _supervise(
        lambda: _exec_command(argv, cwd, env, limits),
        limits,
        wakeup,
        stopped,
        side,
        reader=reader,
        shell=shell,
    )


def run_in_child(
    function: Callable[[], bytes], *, limits: CommandLimits, wakeup: int, stopped: Callable[[], str]
) -> CommandResult:
    """Run one of our functions in a child, so that it can be stopped. The bytes that it returns are
    the output.
    """

    def child() -> NoReturn:
        code = 1
        try:
            cpu = max(1, round(limits.cpu_seconds))
            resource.setrlimit(
                resource.RLIMIT_CPU, (cpu, cpu + 1)
            )  # the soft limit sends a signal that tells the reason
            data = memoryview(function())
            while data:
                data = data[os.write(1, data) :]
            code = 0
        finally:
            os._exit(code)

    return _supervise(child, limits, wakeup, stopped)


def _supervise(
    child: Callable[[], NoReturn],
    limits: CommandLimits,
    wakeup: int,
    stopped: Callable[[], str],
    side: RpcChannel | None = None,
    *,
    reader: RunningCheck | None = None,
    shell: Output | None = None,
) -> CommandResult:
    start_time = time.monotonic()
    pid, read_fd = _fork(child)
    if side:
        side.close_child_end()
    supervisor = _Supervisor(
        read_fd,
        os.pidfd_open(pid),
        wakeup,
        limits=limits,
        start_time=start_time,
        side=side,
        reader=reader,
    )
    left_running: list[str] = []
    if shell:
        supervisor.output = shell
    try:
        status = supervisor.wait_for_end(stopped)
        seconds = time.monotonic() - start_time
        if shell and status == "timeout":
            supervisor.interrupt()
        if status:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, waited, usage = os.wait4(pid, 0)
        if waited:  # its remaining processes may show the reason, if no sample did
            sample(supervisor.peak)
        if shell and not status:
            left_running = supervisor.linger()
        kill_all()
        supervisor.drain()
        if reader:
            supervisor.output.add(reader.end())
    finally:
        supervisor.close()
    output = supervisor.output.bytes()
    code = os.waitstatus_to_exitcode(waited)
    cpu = max(usage.ru_utime + usage.ru_stime, supervisor.peak.cpu_seconds)
    return CommandResult(
        status=status or explain_end(code, output, supervisor.peak, limits, cpu),
        exit_code=code,
        output=output,
        total=supervisor.output.total,
        seconds=seconds,
        cpu_ms=round(cpu * 1000),
        max_rss_bytes=max(usage.ru_maxrss * 1024, supervisor.peak.memory),
        contended=supervisor.contended,
        running_processes=tuple(left_running[:_MAX_NAMED_PROCESSES]),
    )


def _fork(child: Callable[[], NoReturn]) -> tuple[int, int]:
    """Run a function in a child process. Return its pid, and the descriptor of its output."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null_fd = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null_fd, 0), (write_fd, 1), (write_fd, 2)):
            os.dup2(source, target)
        child()
    os.close(write_fd)
    return pid, read_fd


class _Supervisor:
    """Follows a child: its output, its end, its limits."""

    def __init__(
        self,
        read_fd: int,
        child_pidfd: int,
        wakeup: int,
        *,
        limits: CommandLimits,
        start_time: float,
        side: RpcChannel | None,
        reader: RunningCheck | None,
    ) -> None:
        self.output: _OutputBuffer | Output = _OutputBuffer(limits.output_bytes)
        self.peak = PeakUsage()
        self._read_fd, self._child_pidfd, self._wakeup = read_fd, child_pidfd, wakeup
        self._limits, self._deadline, self._hard_deadline = (
            limits,
            start_time + limits.wall_seconds,
            start_time + limits.most_seconds,
        )
        self._contention, self._contention_read = Contention(), 0.0
        self.contended = self._granted = 0.0
        self._side, self._is_registered = side, False
        self._reader = reader
        self._next_sample = time.monotonic() + _SAMPLE_SECONDS
        self._poll = select.poll()
        for descriptor in (read_fd, child_pidfd, wakeup):
            self._poll.register(descriptor, select.POLLIN)

    def wait_for_end(self, stopped: Callable[[], str]) -> str:
        """Return '' if the child ended by itself, or the status with which it must be stopped."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            self._extend_for_stall(now - due)
            if now >= self._effective_deadline() and not self._has_more_time():
                return "timeout"
            self._update_registration()
            due = max(now, min(self._effective_deadline(), self._next_sample))
            ready_fds = {descriptor for descriptor, _ in self._poll.poll((due - now) * 1000)}
            if self._read_fd in ready_fds:
                self._read_or_unregister()
            if self._side and self._side.own_fd in ready_fds:
                self._side.receive()
            if self._wakeup in ready_fds and (reason := stopped()):
                return reason
            if self._child_pidfd in ready_fds:
                return ""
            if exceeded := self._check_limits():
                return exceeded

    def _extend_for_stall(self, delay: float) -> None:
        """Extend the deadlines by the time in which everything stood still, as on a paused
        machine.
        """
        if delay > _STALL_SECONDS:
            self._deadline += delay
            self._hard_deadline += delay
            if self._reader:
                self._reader.extend_for_stall(delay)

    def _has_more_time(self) -> bool:
        """Extend the deadline by the time that the command waited for a core."""
        self._note_contention()
        missing_seconds = self.contended - self._granted
        extension = min(missing_seconds, self._hard_deadline - self._deadline)
        if self._side or extension < _SAMPLE_SECONDS:
            if missing_seconds < _SAMPLE_SECONDS:
                self.contended = (
                    0.0  # the deadline covered all waiting, so the command had its full time
                )
            return False
        self._granted = self.contended
        self._deadline += extension
        return True

    def _note_contention(self) -> None:
        seconds = self._contention.seconds()
        if self.peak.runnable:
            self.contended += seconds - self._contention_read
        self._contention_read = seconds

    def _effective_deadline(self) -> float:
        """Return the deadline; never while the command waits for an answer."""
        if self._side is None:
            return self._deadline
        return _NEVER if self._side.waiting else self._deadline + self._side.waited

    def _update_registration(self) -> None:
        if self._side and self._is_registered != self._side.listening:
            self._is_registered = not self._is_registered
            if self._is_registered:
                self._poll.register(self._side.own_fd, select.POLLIN)
            else:
                self._poll.unregister(self._side.own_fd)

    def interrupt(self) -> None:
        """Interrupt the command as Ctrl-C does, and read its output until it ends, for a short time
        at most.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGINT)
        poll, deadline = select.poll(), time.monotonic() + _INTERRUPT_SECONDS
        poll.register(self._read_fd, select.POLLIN)
        poll.register(self._child_pidfd, select.POLLIN)
        while (remaining := deadline - time.monotonic()) > 0:
            ready_fds = {descriptor for descriptor, _ in poll.poll(remaining * 1000)}
            if self._read_fd in ready_fds and not self._read_available():
                poll.unregister(self._read_fd)
            if self._child_pidfd in ready_fds:
                return

    def linger(self) -> list[str]:
        """Let processes that the command left running, such as a `tee`, end by themselves for a
        moment. Return those that did not.
        """
        poll, deadline = select.poll(), time.monotonic() + _LINGER_SECONDS
        poll.register(self._read_fd, select.POLLIN)
        while (running := running_commands()) and time.monotonic() < deadline:
            if poll.poll(_LINGER_STEP_MS) and not self._read_available():
                poll.unregister(self._read_fd)
        return running

    def drain(self) -> None:
        """Read the rest of the pipe, now that nobody writes to it."""
        os.set_blocking(self._read_fd, False)
        with contextlib.suppress(OSError):
            while data := os.read(self._read_fd, 1 << 16):
                self._add_output(data)

    def close(self) -> None:
        """Close the supervisor's descriptors."""
        os.close(self._read_fd)
        os.close(self._child_pidfd)

    def _read_or_unregister(self) -> None:
        if not self._read_available():
            self._poll.unregister(self._read_fd)

    def _read_available(self) -> bool:
        """Keep the pipe's data; return False if nobody can write to it any more."""
        data = os.read(self._read_fd, 1 << 16)
        if data:
            self._add_output(data)
        return bool(data)

    def _add_output(self, data: bytes) -> None:
        self.output.add(self._reader.feed(data) if self._reader else data)

    def _check_limits(self) -> str:
        if (
            self.output.total > self._limits.output_bytes * _OUTPUT_FACTOR
            and not self._limits.any_output
        ):
            return "output"
        sample_start = time.monotonic()
        if sample_start < self._next_sample:
            return ""
        sample(self.peak)
        self._note_contention()
        now = time.monotonic()
        self._next_sample = now + max(_SAMPLE_SECONDS, 10 * (now - sample_start))
        return _exceeded_limit(self.peak, self._limits) or (
            self._reader.check_stuck(self.contended) if self._reader else ""
        )


def _exceeded_limit(peak: PeakUsage, limits: CommandLimits) -> str:
    if peak.processes >= limits.processes:
        return "processes"
    if peak.memory > limits.memory_bytes and not limits.in_cgroup:
        # Shared pages of forked processes were counted several times: measure exactly.
        peak.memory = read_pss()
        if peak.memory > limits.memory_bytes:
            return "memory"
    return "cpu" if peak.cpu_seconds > limits.cpu_seconds else ""


def explain_end(
    code: int, output: bytes, peak: PeakUsage, limits: CommandLimits, cpu: float
) -> str:
    """Return the status of a command that ended by itself: the limit that it hit, or 'success'
    whatever the exit code.
    """
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu >= limits.cpu_seconds):
        return "cpu"
    if code in {-signal.SIGXFSZ, _SHELL_SIGNAL_BASE + signal.SIGXFSZ}:
        return "disk"
    if code != 0:
        tail = output[-_HINT_BYTES:].decode("utf-8", "replace")
        for status, pattern in _HINTS:
            if re.search(pattern, tail) and (
                status != "processes" or peak.processes * 2 >= limits.processes
            ):
                return status
    return "success"
