"""The embedded bus: a `nats-server` that is our child, for as long as we live and no longer."""

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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from moothall.config import BusSettings
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.file_locks import try_lock, write_private
from moothall.processes import start_process
from moothall.telemetry import get_logger

log = get_logger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOCK_SECONDS = 2.0
MAX_PAYLOAD = 8 * 1024 * 1024
_MAX_LOG = 10 * 1024 * 1024
_TAIL = 800
_LOOK_SECONDS = 1.0
_CALM_SECONDS = 10.0  # between two starts for want of room

# Runs between fork and the server: asks the kernel for SIGKILL when the parent is gone, and looks
# whether
# it already is. A program of its own, because code between fork and exec in a process with threads
# can hang.
_LEASH = """
import ctypes, os, sys
if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
ROOM = 16 * 1024 * 1024  # bytes that must be free: two of the largest messages
_FAILED = (
    b"critical write error",
    b"no space left on device",
    b"out of space",
    b"disk quota exceeded",
)
_READ = 1024 * 1024


def _binary() -> str:
    beside = (
        Path(sysconfig.get_path("scripts")) / "nats-server",
        Path(sys.executable).parent / "nats-server",
    )
    for path in beside:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigurationError(
            "there is no nats-server: install moothall[embedded], or set bus.url to a bus of your "
            "own"
        )
    return found


def _lock(directory: Path) -> int:
    """Take the directory and return the lock's descriptor. The server inherits it, so that the
    directory
    is taken until the last of both is gone. Blocks for up to `LOCK_SECONDS`.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOCK_SECONDS
    while not try_lock(descriptor):
        if time.monotonic() > until:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigurationError(
                f"the bus directory {directory} is in use by another Moothall (process {holder}): "
                "stop that one, attach to it, or choose another data directory"
            )
        time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _token(directory: Path) -> str:
    """Return the token of this directory, made once: clients outlive a restart of the server."""
    path = directory / "token"
    if path.exists():
        token = path.read_text(encoding="utf-8").strip()
        if token.isalnum():
            path.chmod(0o600)
            return token
    token = secrets.token_hex(24)
    write_private(path, token)
    return token


def _take(directory: Path) -> tuple[Path, str, int]:
    """Make the directory ours: return its absolute path, its token and the lock's descriptor."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    lock = _lock(directory)
    return directory, _token(directory), lock


def _configure(settings: BusSettings, directory: Path, token: str, port: int) -> Path:

    def quote(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # the server's own escapes are fewer

    path = directory / "nats-server.conf"
    write_private(
        path,
        f"""# written at every start
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


def _last_words(directory: Path) -> str:
    for name in ("start.log", "nats-server.log"):
        path = directory / name
        words = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
        if words:
            return words[-_TAIL:]
    return "it said nothing"


@dataclass(slots=True)
class _Server:
    """One run after another of the server in a directory, on one port."""

    directory: Path
    config: Path
    lock: int
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        """Start it and return the port once it listens."""
        for stale in self.directory.glob("*.ports"):
            stale.unlink(missing_ok=True)
        with (self.directory / "start.log").open("wb") as output:
            self.process = await start_process(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _LEASH,
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
                start_new_session=True,  # Ctrl-C is for us: we still need the bus while we close
                cwd="/",
                env={"PATH": os.defpath},
            )
        return await self._port()

    async def _port(self) -> int:
        process = self._process()
        path = self.directory / f"nats-server_{process.pid}.ports"
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if process.returncode is not None:
                raise BusUnavailable(
                    f"the embedded bus in {self.directory} did not start: "
                    f"{_last_words(self.directory)}"
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
        """Start it again, on the same port, whenever it ends without being told to."""
        delay = 0.1
        while True:
            began = time.monotonic()
            code = await self._process().wait()
            log.warning("embedded bus ended; starting it again", exit_code=code)
            delay = 0.1 if time.monotonic() - began > START_SECONDS else min(delay * 2, 5.0)
            await asyncio.sleep(delay)
            try:
                await self.start()
            except (BusUnavailable, OSError) as error:
                log.warning("embedded bus did not come back", reason=str(error))

    async def mind_the_disk(self) -> None:
        """End it, to be started again, once there is room after its disk was full: what it refused
        since then it takes again.
        """
        disk = Disk(self.directory)
        await asyncio.to_thread(disk.has_failed)  # what an earlier run said of it
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not await asyncio.to_thread(disk.has_failed):
                continue
            log.error(
                "the disk of the bus is full: it takes nothing until there is room",
                directory=str(self.directory),
            )
            while not await asyncio.to_thread(disk.has_room):  # noqa: ASYNC110 - the operator's doing
                await asyncio.sleep(_LOOK_SECONDS)
            log.warning(
                "the disk of the bus has room again; starting it anew",
                directory=str(self.directory),
            )
            await asyncio.to_thread(disk.has_failed)
            await self.stop()
            await asyncio.sleep(_CALM_SECONDS)

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
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
    """Keep the server running meanwhile. What the body raises comes out as it is, not wrapped by
    the task group.
    """
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        watching = [
            group.create_task(server.watch(), name="embedded bus: watch"),
            group.create_task(server.mind_the_disk(), name="embedded bus: disk"),
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
    """Run a server with its files in `directory`, kept from run to run, and yield its URL (with a
    token in it).

    It listens on a free port of loopback, and is started again should it die. It dies with
    this process, however that ends. Call it from a thread that lives as long: the kernel ties the
    child to the thread that started it. Raises `ConfigurationError` where the directory is in use
    or
    can't be written, `BusUnavailable` where the server doesn't start.
    """
    try:
        directory, token, lock = await asyncio.to_thread(_take, directory)
    except OSError as error:
        raise ConfigurationError(
            f"the bus directory {directory} cannot be used: {error.strerror}"
        ) from error
    try:
        server = _Server(directory, _configure(settings, directory, token, -1), lock)
        try:
            listening = await server.start()
            _configure(settings, directory, token, listening)
            async with _watch(server):
                yield f"nats://{token}@127.0.0.1:{listening}"
        finally:
            await server.stop()
    except OSError as error:
        raise BusUnavailable(
            f"the embedded bus in {directory} cannot be started: {error.strerror or error}"
        ) from error
    finally:
        os.close(lock)


@dataclass(slots=True)
class Disk:
    """Notices that the disk below `directory` was full: the server gives a stream up at the first
    write that fails, and takes it up again only when it is started anew. Methods block for a
    moment.
    """

    directory: Path
    _read: int = 0

    def has_room(self) -> bool:
        """Whether a message of any size can be written."""
        return self._free() >= ROOM

    def has_failed(self) -> bool:
        """Whether there is no room now, or a write has failed since this was last asked."""
        return self._log_says_so() or self._free() < ROOM // 2

    def _free(self) -> int:
        try:
            found = os.statvfs(self.directory)
        except OSError:  # it is gone: that there is no room is not what ails it
            return ROOM
        return found.f_bavail * found.f_frsize

    def _log_says_so(self) -> bool:
        path = self.directory / "nats-server.log"
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(
                    self._read if self._read <= size else 0
                )  # shorter: the server has begun a new one
                said = file.read(_READ).lower()
                self._read = file.tell()
        except FileNotFoundError:
            return False
        return any(words in said for words in _FAILED)
