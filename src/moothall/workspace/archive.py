"""Folder trees as tar streams, in pieces. Packing and unpacking never follow links, which
hostile code may have created.

`tarfile.extractall` is not used: its filters have been bypassed more than once, and the files
that a setup returns were written by code of the repository.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import struct
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar, cast

from moothall.errors import WorkspaceFailed

Include = Callable[[str, os.stat_result], bool]
_T = TypeVar("_T")
_R = TypeVar("_R")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPIED = 1 << 20
PIECE = 1 << 18
"""Bytes of a tree that are sent at a time: as many as fit into a message."""
_SIZE = struct.Struct("!I")
_HEADERS = 1 << 20  # the most bytes before a member's content
_ENTRY = 4096  # bytes that count for an entry besides its content


def include_all(_path: str, _status: os.stat_result) -> bool:
    """Keep every entry."""
    return True


def pack(root: Path, target: IO[bytes], include: Include = include_all) -> None:
    """Write the files, folders and symlinks below `root` for which `include` is true, a folder
    before its contents. Pipes and sockets are left out.
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder, names, files, descriptor in os.fwalk(root, follow_symlinks=False):
            names.sort()
            for name in (*names, *sorted(files)):
                path = os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118 - names that are not text are preserved
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if include(path, status):
                    _add_member(archive, path, name, descriptor, status)


def _add_member(
    archive: tarfile.TarFile, path: str, name: str, folder: int, status: os.stat_result
) -> None:
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(status.st_mode) & 0o777
    member.mtime = status.st_mtime
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
        archive.addfile(member)
    elif stat.S_ISREG(status.st_mode):
        with suppress(PermissionError):
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
            with os.fdopen(descriptor, "rb") as file:
                member.size = os.fstat(descriptor).st_size
                archive.addfile(member, file)


def unpack(source: IO[bytes], root: Path, *, owner: int | None = None, max_bytes: int) -> None:
    """Write the contents of a stream below `root`, over existing files. Raises `WorkspaceFailed` if
    it is not a valid tree or has more than `max_bytes`, and `OSError` if something cannot be
    written.
    """
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _unpack(_Bounded(source), top, owner, max_bytes)
    except (OSError, WorkspaceFailed):
        raise
    except Exception as error:  # a hostile stream can cause any error
        raise WorkspaceFailed(f"the received tree is invalid: {error}") from error
    finally:
        os.close(top)


def _unpack(source: _Bounded, top: int, owner: int | None, max_bytes: int) -> None:
    bytes_left = max_bytes
    with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|") as archive:
        for member in archive:
            archive.members, archive.pax_headers = [], {}  # type: ignore[attr-defined]  # it would store every member
            bytes_left -= max(member.size, 0) + _ENTRY
            if bytes_left < 0:
                raise WorkspaceFailed(f"the received tree has more than {max_bytes} bytes")
            source.remaining_bytes = member.size + _HEADERS
            _write_member(archive, member, top, owner)


class _Bounded:
    """A stream that limits how much is read between two members, since `tarfile` reads headers of
    any length into memory.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.remaining_bytes = source, _HEADERS

    def read(self, size: int) -> bytes:
        """Read the next bytes."""
        self.remaining_bytes -= size
        if self.remaining_bytes < 0:
            raise WorkspaceFailed(f"the received tree has more than {_HEADERS} bytes of headers")
        return self._source.read(size)


def split_path(path: str) -> list[str]:
    """Return the parts of a path below a folder. Raises `WorkspaceFailed` if the path leads out of
    it.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise WorkspaceFailed(f"the path {path[:200]!r} leads out of the folder")
    return parts


def _write_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, top: int, owner: int | None
) -> None:
    parts = split_path(member.name)
    with _parent(top, parts[:-1]) as folder:
        name = parts[-1]
        if member.isdir():
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                os.fchmod(inner, (member.mode & 0o777) | 0o700)
                if owner is not None:
                    os.fchown(inner, owner, owner)
            finally:
                os.close(inner)
            return
        _remove(name, folder)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
        elif member.isreg():
            _write(archive, member, name, folder)
        else:
            raise WorkspaceFailed(f"{member.name[:200]!r} is not a file, folder or symlink")
        if owner is not None:
            os.chown(name, owner, owner, dir_fd=folder, follow_symlinks=False)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int) -> None:
    content = archive.extractfile(member)
    assert content is not None  # noqa: S101 - it is a file
    descriptor = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, _COPIED)
        os.fchmod(descriptor, member.mode & 0o777)
        file.flush()
        os.utime(descriptor, (member.mtime, member.mtime))


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _parent(top: int, parts: list[str]) -> Iterator[int]:
    folder = os.dup(top)
    try:
        for part in parts:
            try:
                inner = os.open(part, _FOLDER, dir_fd=folder)
            except OSError as error:
                raise WorkspaceFailed(
                    f"{'/'.join(parts)[:200]!r} is not a folder: {error.strerror}"
                ) from error
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


async def send(pipe: Pipe, stream: socket.socket) -> None:
    """Send the packed tree in pieces, each after its size, then an empty one. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    while True:
        piece = await asyncio.to_thread(pipe.read, PIECE)
        await loop.sock_sendall(stream, _SIZE.pack(len(piece)) + piece)
        if not piece:
            return


async def receive(pipe: Pipe, stream: asyncio.StreamReader) -> None:
    """Pass the received pieces to the unpacking thread, up to the empty piece or until that thread
    has ended. Raises `WorkspaceFailed` if the stream breaks off.
    """
    try:
        while size := _SIZE.unpack(await stream.readexactly(_SIZE.size))[0]:
            if not await asyncio.to_thread(pipe.write, await stream.readexactly(size)):
                return
    except asyncio.IncompleteReadError as error:
        raise WorkspaceFailed("the transfer of a tree was cut off") from error


class Pipe:
    """A thread that packs or unpacks, and the caller's end of its pipe. The methods block, so call
    them in other threads.
    """

    def __init__(self, work: Callable[[IO[bytes]], None], *, reads: bool) -> None:
        source, target = os.pipe2(os.O_CLOEXEC)
        worker_end, mode = (source, "rb") if reads else (target, "wb")
        self._caller_end = target if reads else source
        self._using, self._finished = threading.Lock(), False
        self._failed: list[BaseException] = []

        def run() -> None:
            try:
                with os.fdopen(worker_end, mode) as stream:
                    work(stream)
            except Exception as error:  # noqa: BLE001 - `finish` raises it, so that a part is not taken for the whole
                self._failed.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> bool:
        """Pass a piece to the unpacking thread; False if that has ended."""
        data = memoryview(piece)
        try:
            while data:
                data = data[self._call_with_descriptor(os.write, data) :]
        except BrokenPipeError:
            return False
        return True

    def read(self, max_bytes: int) -> bytes:
        """Return the next piece of the packed tree, of `max_bytes` except for the last; empty at
        the end. Raises `BrokenPipeError` once the pipe is finished.
        """
        parts: list[bytes] = []
        bytes_left = max_bytes
        while bytes_left and (part := self._call_with_descriptor(os.read, bytes_left)):
            parts.append(part)
            bytes_left -= len(part)
        return b"".join(parts)

    def _call_with_descriptor(self, call: Callable[[int, _T], _R], argument: _T) -> _R:
        """Call a function with the caller's end. A cancelled caller may leave a thread that still
        reads; it must not use another file that has the same descriptor number by then.
        """
        with self._using:
            if self._finished:
                raise BrokenPipeError
            return call(self._caller_end, argument)

    def finish(self) -> None:
        """Close the caller's end and wait for the thread. Raises the error that ended it."""
        with self._using:
            self._finished = True
            os.close(self._caller_end)
        self._thread.join()
        if self._failed:
            raise self._failed[0]


@asynccontextmanager
async def piped(work: Callable[[IO[bytes]], None], *, reads: bool) -> AsyncIterator[Pipe]:
    """Provide a pipe that is finished at the end of the block. An error of the block is raised
    instead of the one that it causes in the thread.
    """
    pipe = Pipe(work, reads=reads)
    try:
        yield pipe
    except BaseException:
        with suppress(OSError, WorkspaceFailed):
            await asyncio.to_thread(pipe.finish)
        raise
    await asyncio.to_thread(pipe.finish)
