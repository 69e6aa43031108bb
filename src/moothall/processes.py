"""Processes of one machine: child processes that inherit only the descriptors passed to them, the
files that outlive them (shared files, and temporary folders), and requests from one process to
another.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

# Files that processes share: locks, which the kernel releases when their holder ends in any way;
# and texts that only their owner can read.


_PAUSE = 0.05


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file. Return False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on NFS
        return False
    return True


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Hold the lock of a file, which is created if it is missing. Yield False if another process
    holds it.
    """
    descriptor = _open_lock_file(path)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def lock(path: Path) -> AsyncIterator[None]:
    """Wait for the lock of a file, which is created if it is missing, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_lock_file(path)
    try:
        while not try_lock(descriptor):  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a text that only its owner can read, in one step: a reader gets the old text or the
    whole new one.
    """
    fresh = path.with_suffix(".new")
    with os.fdopen(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600),
        "w",
        encoding="utf-8",
    ) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    fresh.replace(path)


# Child processes that inherit only the descriptors that they are given.
#
# uvloop ignores `close_fds`: a child gets every inheritable descriptor of its parent, such as those
# that the starting shell had open. So children are started here, and only here (ruff's TID251).


_STDERR = 2


def mark_close_on_exec() -> None:
    """Mark every open descriptor above stderr close-on-exec."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names, not paths
        if int(name) > _STDERR:
            with suppress(OSError):  # it is the listing's own, or another thread closed it
                os.set_inheritable(int(name), False)


async def start_process(
    *argv: str, pass_fds: Sequence[int] = (), **options: Any
) -> asyncio.subprocess.Process:
    """Start a child that inherits only its standard streams and `pass_fds`.

    `options` are those of `asyncio.create_subprocess_exec`, which also names the errors.
    """
    mark_close_on_exec()
    return await asyncio.create_subprocess_exec(*argv, pass_fds=pass_fds, **options)  # noqa: TID251 - here only


# Temporary folders that are cleaned up even after a killed process: each is locked by its owner,
# and folders without an owner are removed.


_SCRATCH_PREFIX = "moothall-scratch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that exists as long as the context. The first call in a process removes the
    folders that killed processes left.
    """
    _sweep_scratch_once()
    folder, lock = _create_scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_scratch() -> int:
    """Remove the folders whose owner is gone, and return their number."""
    count = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        lock = _lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            count += 1
    return count


@functools.cache
def _sweep_scratch_once() -> None:
    sweep_scratch()


def _create_scratch() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
        lock = _lock_folder(folder)
        if lock is not None:
            if folder.exists():
                return folder, lock
            os.close(lock)  # another process removed the folder before it was locked


def _lock_folder(folder: Path) -> int | None:
    """Return a descriptor that locks the folder. Return None if another process holds the lock, or
    if the folder is gone or belongs to another user.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


# Requests to another process, over a Unix socket in the data directory: one request per connection,
# and one line of JSON each for the request and its answer. The mode of the folder (0700) protects
# the socket.


MAX_REQUEST_BYTES = 64 * 1024
_MAX_PATH_BYTES = 100
"""The kernel's limit for the path of a socket, with a margin."""


@asynccontextmanager
async def serve_requests(
    path: Path, answer: Callable[[bytes], Awaitable[Mapping[str, Any]]]
) -> AsyncIterator[None]:
    """Answer requests on the Unix socket `path` for the duration of the block."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await answer(await reader.readline())
            writer.write(json.dumps(reply).encode())
            await writer.drain()
        except (OSError, ValueError):
            pass  # the client has disconnected, or its request was too long
        finally:
            writer.close()

    _remove(path)
    with _short_path(path) as name:
        server = await asyncio.start_unix_server(serve, name, limit=MAX_REQUEST_BYTES)
    async with server:
        try:
            yield
        finally:
            _remove(path)


async def send_request(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the process that serves the Unix socket `path`.

    Raises `FileNotFoundError` or `ConnectionRefusedError` if no process serves it, another
    `OSError` if the connection breaks, and `ValueError` if the answer is not a JSON object.
    """
    with _short_path(path) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        answer = json.loads(await reader.read())
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004 - as for malformed JSON
    return answer


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path that is short enough for a socket. Deep folders are addressed by descriptor."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
