"""Starts a process inside its sandbox, and makes sure that nothing of it remains afterwards.

The sandboxed process writes its output to a pipe, and this process writes the log file.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import select
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from moothall.errors import SandboxUnavailable
from moothall.processes import start_process
from moothall.sandbox import bubblewrap as seccomp
from moothall.sandbox import cgroups
from moothall.sandbox.bubblewrap import (
    HOSTNAME,
    UID,
    USER,
    Overlay,
    SandboxSpec,
    bubblewrap,
    command,
    interpreter,
)
from moothall.sandbox_runtime import launcher

TAIL_BYTES = 2000
_MAX_OUTPUT_BYTES = 4_000_000  # of output in the file; the tail is always the newest
_READ_BYTES = 65_536  # the capacity of a pipe
_PAUSE_SECONDS = 0.01  # between reads: limits a flood of output to a few MB a second
_MAX_DRAIN_READS = 16
_OUTPUT_PREFIX = b"| "  # before each line of output, so that it cannot look like a note
_PASSWD = (
    "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    f"{USER}:x:{UID}:{UID}:{USER}:/tmp/home:/bin/sh\n"
)
_GROUP = f"root:x:0:\n{USER}:x:{UID}:\n"
_HOSTS = f"127.0.0.1 localhost\n127.0.0.1 {HOSTNAME}\n"
_SPARE_PROCESSES = 8  # bubblewrap's two, the executor, and room for it to fork
_SPARE_MEMORY = 48_000_000  # the executor's own
_LAUNCHER = str(Path(launcher.__file__).resolve())


class SandboxLog:
    """Reads the stdout and stderr of a sandboxed process and writes them, up to a limit, to `path`,
    together with our own notes.

    `writing` is the descriptor for the process. Use it in one event loop, and call `start` after
    starting the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = path.open("ab", buffering=0) if path else None
        self._read_fd, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.writing, True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._tail = b""
        self._bytes_left = _MAX_OUTPUT_BYTES
        self._at_line_start = True

    def start(self) -> None:
        """Close our copy of the writing end, and read until the process ends."""
        os.close(self.writing)
        self.writing = -1
        self._loop = asyncio.get_running_loop()
        self._listen()

    def tail(self) -> str:
        """Return the end of the output since the last note."""
        for _ in range(_MAX_DRAIN_READS):
            if not self._read_output():
                break
        return self._tail.decode(errors="replace").strip()

    def note(self, text: str) -> None:
        """Add our own lines to the log."""
        self.tail()
        self._tail = b""
        self._append((b"" if self._at_line_start else b"\n") + text.encode(errors="replace"))
        self._at_line_start = text.endswith("\n")

    def close(self) -> None:
        """Read the rest and close everything; `tail` still works."""
        self.tail()
        self._stop()
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
        if self._file:
            self._file.close()
            self._file = None

    def _listen(self) -> None:
        self._pause = None
        if self._loop and self._read_fd >= 0:
            self._loop.add_reader(self._read_fd, self._on_output)

    def _on_output(self) -> None:
        if self._loop and self._read_output():
            self._loop.remove_reader(self._read_fd)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)

    def _read_output(self) -> bool:
        """Read once; return whether there was output. Stop when the output ends."""
        if self._read_fd < 0:
            return False
        try:
            output = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not output:
            self._stop()
            return False
        self._tail = (self._tail + output)[-TAIL_BYTES:]
        self._write_limited(output)
        return True

    def _write_limited(self, output: bytes) -> None:
        if not self._file or not self._bytes_left:
            return
        output = output[: self._bytes_left]
        self._bytes_left -= len(output)
        text = (_OUTPUT_PREFIX if self._at_line_start else b"") + output.replace(
            b"\n", b"\n" + _OUTPUT_PREFIX
        )
        self._at_line_start = output.endswith(b"\n")
        if self._at_line_start:
            text = text[: -len(_OUTPUT_PREFIX)]
        if not self._bytes_left:
            text += b"\n| ... the log keeps %d bytes of output\n" % _MAX_OUTPUT_BYTES
            self._at_line_start = True
        self._append(text)

    def _append(self, text: bytes) -> None:
        if self._file:
            with suppress(OSError):  # a full disk must not end the sandbox
                self._file.write(text)

    def _stop(self) -> None:
        if self._pause:
            self._pause.cancel()
            self._pause = None
        if self._read_fd >= 0:
            if self._loop:
                self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1


OPEN_FILES = 1024
"""The maximum number of open files of one process in a sandbox."""
SANDBOX_UID = 64_817
"""The user id of sandboxes if Moothall itself runs as root."""


def sandbox_uid() -> int | None:
    """Return the uid that owns what a sandbox writes: None means this process's own."""
    return SANDBOX_UID if os.getuid() == 0 else None


def set_owner(path: Path, uid: int | None) -> None:
    """Give `path` to the uid under which sandboxes run."""
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


@dataclass(slots=True)
class Sandboxed:
    """A process in its sandbox. `pid` is that of the host; killing it ends everything inside."""

    process: asyncio.subprocess.Process
    cgroup: cgroups.Cgroup | None
    _log: SandboxLog
    _handle: int
    _killed: bool = False

    @property
    def pid(self) -> int:
        """The host's pid of the outermost process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs, according to the kernel, which knows before asyncio does."""
        if self._killed or self._handle < 0 or self.process.returncode is not None:
            return False
        return not select.select([self._handle], [], [], 0)[0]

    def log_tail(self) -> str:
        """Return the end of the process's output since the last note."""
        return self._log.tail()

    def note(self, text: str) -> None:
        """Add our own lines to the log."""
        self._log.note(text)

    def kill(self) -> None:
        """Kill it and all its descendants, which share its pid namespace and die with it."""
        self._killed = True
        # By pidfd: `process.kill()` might reap the child before asyncio's own watcher does.
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    async def close(self) -> None:
        """Kill and reap it, and remove what is left."""
        self.kill()
        await self.process.wait()
        if self.cgroup:
            for _ in range(50):  # the last processes of the namespace are still being torn down
                self.cgroup.remove()
                if not self.cgroup.memory.exists() and not self.cgroup.pids.exists():
                    break
                # bubblewrap's inner process may have outlived it: see sandbox/orphans.py
                self.cgroup.kill()
                await asyncio.sleep(0.01)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._log.close()


@contextmanager
def _closing_descriptors() -> Iterator[list[int]]:
    descriptors: list[int] = []
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _memory_fd(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _create_cgroup(spec: SandboxSpec) -> cgroups.Cgroup | None:
    try:
        return cgroups.create_cgroup(
            spec.name,
            spec.limits.memory_bytes + _SPARE_MEMORY,
            spec.limits.processes + _SPARE_PROCESSES,
        )
    except OSError as error:
        raise SandboxUnavailable(
            f"cgroup: {error}; free or fix the cgroup hierarchy at {error.filename}"
        ) from error


def _overlay_folders(overlay: Overlay) -> dict[str, str | list[str]]:
    return {
        "lower": [str(path) for path in overlay.lower],
        "upper": str(overlay.upper),
        "work": str(overlay.work),
    }


async def spawn(spec: SandboxSpec) -> Sandboxed:
    """Start `spec.argv` inside. The caller must close the result.

    Raises `SandboxUnavailable` if bubblewrap, seccomp or the cgroup is not available. If the
    launcher or bubblewrap fails later, the process ends with the reason in its log.
    """
    with _closing_descriptors() as descriptors:
        filter_fd = None
        try:
            filter_fd = seccomp.program_fd()
            descriptors.append(filter_fd)
        except SandboxUnavailable:
            if "seccomp" not in spec.limits.allow_degraded:
                raise
        accounts = {}
        for name, content in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS)):
            accounts[name] = _memory_fd(name, content.encode())
            descriptors.append(accounts[name])
        stage, argv = command(spec, seccomp=filter_fd, accounts=accounts)
        cgroup = _create_cgroup(spec)
        request = {
            "parent": os.getpid(),
            "uid": sandbox_uid(),
            "cgroups": cgroup.procs_files if cgroup else (),
            "stage": stage,
            "overlay": _overlay_folders(spec.overlay) if spec.overlay else None,
            "program": bubblewrap(),
            "argv": argv,
            "descriptors": (*descriptors, *spec.fds),
        }
        request_fd = _memory_fd("order", marshal.dumps(request))
        descriptors.append(request_fd)
        log = SandboxLog(spec.log)
        try:
            process = await start_process(
                str(interpreter()),
                "-I",
                "-S",
                _LAUNCHER,
                str(request_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log.writing,
                stderr=log.writing,
                pass_fds=(*descriptors, *spec.fds),
                env={},
                cwd="/",
                # Ctrl-C in the terminal is for us: we end what we started
                start_new_session=True,
            )
        except BaseException:
            log.close()
            if cgroup:
                cgroup.remove()
            raise
        log.start()
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            handle = -1  # dead and reaped already
    return Sandboxed(process, cgroup, log, handle)


@asynccontextmanager
async def run_sandbox(spec: SandboxSpec) -> AsyncIterator[Sandboxed]:
    """Run `spec` for the duration of the block."""
    inside = await spawn(spec)
    try:
        yield inside
    finally:
        await inside.close()
