"""Attempts of forbidden actions inside a sandbox. Standard library only; started as `python -c BOOT
FD OPTIONS`.

Writes one JSON line to the socket FD: name → [whether the restriction held, what happened].
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moothall.sandbox_runtime.commands import CommandLimits, run_command
from moothall.sandbox_runtime.confinement import EXECUTOR_PID, ROOT, block_signals_to_all, confine
from moothall.sandbox_runtime.processes import kill_all, other_pids

ProbeResult = tuple[bool, str]
_IO_URING_SETUP = 425  # the same on every architecture
_PTRACE_TRACEME = 0
_ALL_BLOCKED = 99  # the exit code if all calls were blocked


def _try_act(action: Callable[[], object], description: str) -> ProbeResult:
    try:
        action()
    except OSError as error:
        return True, f"{description}: {errno.errorcode.get(error.errno or 0, '?')}"
    return False, f"{description} was possible"


def _first_failure(*results: ProbeResult) -> ProbeResult:
    return next(
        (result for result in results if not result[0]),
        (True, "; ".join(text for _, text in results)),
    )


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _processes_hidden() -> ProbeResult:
    visible_pids = other_pids()
    return (not visible_pids), f"processes visible beside its own: {len(visible_pids)}"


def _identity() -> ProbeResult:
    with Path("/proc/thread-self/status").open(encoding="ascii") as file:
        capabilities = next(line.split()[1] for line in file if line.startswith("CapEff"))
    has_none = int(capabilities, 16) == 0
    return _first_failure(
        (has_none, f"capabilities {capabilities}"), _try_act(lambda: os.setuid(0), "setuid(0)")
    )


def _files(options: Mapping[str, Any]) -> ProbeResult:
    return _first_failure(
        _try_act(Path(options["host_file"]).stat, "looking at a file of the host"),
        _try_act(lambda: _write("/usr/moothall-probe"), "writing to /usr"),
        _try_act(lambda: _write("/etc/moothall-probe"), "writing to /etc"),
    )


def _network(options: Mapping[str, Any]) -> ProbeResult:
    def connect() -> None:
        with socket.create_connection(("127.0.0.1", options["port"]), timeout=1):
            pass

    return _try_act(connect, "connecting to a listener of the host")


def _seccomp() -> ProbeResult:
    """Try system calls in a child, because a traced process is stopped by its next signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("io_uring_setup", lambda: int(libc.syscall(ctypes.c_long(_IO_URING_SETUP), 1, None))),
        ("ptrace", lambda: int(libc.ptrace(_PTRACE_TRACEME, 0, None, None))),
    )
    child = os.fork()
    if child == 0:
        let_through = len(calls)
        try:
            for number, (_, call) in enumerate(calls):
                ctypes.set_errno(0)
                if call() != -1 or ctypes.get_errno() != errno.EPERM:
                    let_through = number
                    break
            else:
                let_through = _ALL_BLOCKED
        finally:
            os._exit(let_through)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _ALL_BLOCKED:
        return True, "; ".join(f"{name}: EPERM" for name, _ in calls)
    return False, f"{calls[code][0] if 0 <= code < len(calls) else 'a system call'} was let through"


def _executor() -> ProbeResult:
    """Try to signal the executor, like code that it runs. Signal number 0 kills nobody, and is
    refused like any other.
    """
    if os.getpid() != EXECUTOR_PID:
        return False, f"it is process {os.getpid()}, not {EXECUTOR_PID}"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            block_signals_to_all()
            attempts: tuple[Callable[[], object], ...] = (
                lambda: os.kill(EXECUTOR_PID, 0),
                lambda: os.kill(-1, 0),
                lambda: resource.prlimit(EXECUTOR_PID, resource.RLIMIT_NOFILE),
            )
            code = 0 if all(_try_act(action, "")[0] for action in attempts) else 1
        finally:
            os._exit(code)
    is_blocked = os.waitpid(child, 0)[1] == 0
    return (
        is_blocked,
        "its children cannot signal or limit it"
        if is_blocked
        else "its children can signal or limit it",
    )


def _landlock(version: int) -> ProbeResult:
    if not version:
        return False, "the kernel has no Landlock"
    if Path("/dev").stat().st_uid != os.getuid():
        return False, "/dev is not writable for a reason of its own, so nothing was shown"
    return _try_act(
        lambda: _write("/dev/moothall-probe"), f"ABI {version}, writing beside the allowed paths"
    )


def _processes(limit: int) -> ProbeResult:
    """Fork until the kernel refuses."""
    forked = 0
    try:
        for _ in range(limit * 2):
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            forked += 1
    except OSError as error:
        return True, f"no more than {forked}: {errno.errorcode.get(error.errno or 0, '?')}"
    finally:
        kill_all()
    return False, f"{forked} processes were made where {limit} are allowed"


def _command(code: str, options: Mapping[str, Any], wakeup: int) -> ProbeResult:
    limits = CommandLimits(
        wall_seconds=5,
        cpu_seconds=5,
        output_bytes=2000,
        memory_bytes=options["memory"],
        processes=options["processes"],
        file_bytes=options["file"],
        in_cgroup=options["cgroup"],
    )
    result = run_command(
        (sys.executable, "-I", "-S", "-c", code),
        cwd=ROOT,
        env={},
        limits=limits,
        wakeup=wakeup,
        stopped=lambda: "",
    )
    exit_text = (
        f"signal {-result.exit_code}" if result.exit_code < 0 else f"exit code {result.exit_code}"
    )
    return result.exit_code != 0, f"ended by {exit_text}"


def main() -> None:
    """Run all probes, and report."""
    link, options = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    link.set_inheritable(False)
    version = confine(options)
    results: dict[str, ProbeResult] = {
        "processes-hidden": _processes_hidden(),
        "identity": _identity(),
        "files": _files(options),
        "network": _network(options),
        "seccomp": _seccomp(),
        "landlock": _landlock(version),
        "executor": _executor(),
        "processes": _processes(options["processes"]),
    }
    with Path(ROOT, "base").open("a", encoding="ascii") as file:
        file.write(", changed")
    results["memory"] = _command(
        f"b = bytearray({3 * options['memory']}); b[::4096] = b'x' * len(b[::4096])",
        options,
        link.fileno(),
    )
    results["disk"] = _command(
        f"open('big', 'wb').write(bytes({2 * options['file']}))", options, link.fileno()
    )
    with contextlib.suppress(OSError):
        Path(ROOT, "big").unlink()
    link.sendall(json.dumps(results).encode() + b"\n")
