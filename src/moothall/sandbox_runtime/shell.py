"""The state of a workspace's shell: a current folder, files for long output, and git.

Git reads a host directory that nobody can write to. What git itself writes (index, refs, new
objects) is in the sandbox's /tmp, and `/workspace/.git` points there while a shell command runs, so
checks never see it. Standard library only: part of the executor.
"""

# pathlib costs the executor start time
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH112, PTH116, PTH117, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import stat

from moothall.sandbox_runtime.confinement import HOME, ROOT

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "/tmp/moothall"  # noqa: S108 - inside the sandbox
HEAD_BYTES, TAIL_BYTES = 5_000, 11_000
_MAX_OUTPUT_FILES = 10
_FILE_BYTES = 10_000_000
_FILE_SHARE = 64  # the divisor of the commands' memory, which /tmp uses
_PATH_BYTES = 4096
_COPY_BYTES = 1 << 20
_GIT_CONFIG = b"[safe]\n\tdirectory = *\n"
_LINK = f"gitdir: {FOLDER}/git\n".encode()


class Shell:
    """The state between commands; one for each executor."""

    def __init__(self, memory_bytes: int) -> None:
        self.folder = ROOT
        self._file_bytes = min(_FILE_BYTES, memory_bytes // _FILE_SHARE)
        self._number = 0

    def begin(self) -> str:
        """Prepare for a command. If the current folder is gone, go back to the top and return a
        note, else ''.
        """
        with contextlib.suppress(OSError):
            os.makedirs(FOLDER, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(f"{FOLDER}/folder")
            except IsADirectoryError:  # created by code
                os.rename(f"{FOLDER}/folder", f"{FOLDER}/folder.{os.urandom(8).hex()}")
        previous_folder, self.folder = (
            self.folder,
            self.folder if os.path.isdir(self.folder) else ROOT,
        )
        return (
            f"{previous_folder} is gone; the command ran in {ROOT}"
            if previous_folder != self.folder
            else ""
        )

    def end(self) -> None:
        """Make the folder in which a command ended current. If the command was killed, the folder
        stays.
        """
        folder = os.fsdecode(_read_start(f"{FOLDER}/folder", _PATH_BYTES).removesuffix(b"\n"))
        if os.path.isabs(folder) and "\0" not in folder and os.path.isdir(folder):
            self.folder = folder

    def output(self) -> Output:
        """Create the output of the next command."""
        self._number += 1
        return Output(f"{FOLDER}/output-{self._number}.txt", self._file_bytes)

    def remove_old_output(self) -> None:
        """Remove the oldest output file beyond the limit."""
        with contextlib.suppress(OSError):
            os.unlink(f"{FOLDER}/output-{self._number - _MAX_OUTPUT_FILES}.txt")

    @contextlib.contextmanager
    def git(self, history: str) -> Iterator[None]:
        """Let git find the history while a command runs, unless the workspace has its own
        `.git`.
        """
        link = os.path.join(ROOT, ".git")
        is_linked = False
        if history and not os.path.lexists(link):
            with contextlib.suppress(OSError), _keep_times(ROOT):
                _create_git_folder(history, f"{FOLDER}/git")
                if os.stat(ROOT).st_uid != os.geteuid() and not os.path.lexists(
                    f"{HOME}/.gitconfig"
                ):
                    _write_new(f"{HOME}/.gitconfig", _GIT_CONFIG)  # in pods, volumes belong to root
                _write_new(link, _LINK)
                is_linked = True
        try:
            yield
        finally:
            if is_linked and _read_start(link, len(_LINK) + 1) == _LINK:
                with contextlib.suppress(OSError), _keep_times(ROOT):
                    os.unlink(link)


class Output:
    """The head and tail of the output. If it is longer, all of it goes to a file, up to a limit."""

    def __init__(self, path: str, max_file_bytes: int) -> None:
        self._path, self._max_file_bytes = path, max_file_bytes
        self._head, self._tail = bytearray(), bytearray()
        self._file = -1
        self._written = self._lines = self.total = 0
        self._has_failed = False

    def add(self, data: bytes) -> None:
        """Add printed data."""
        self.total += len(data)
        self._lines += data.count(b"\n")
        if self.total > HEAD_BYTES + TAIL_BYTES:
            self._store_data(data)
        remaining = max(0, HEAD_BYTES - len(self._head))
        self._head += data[:remaining]
        self._tail += data[remaining:]
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def _store_data(self, data: bytes) -> None:
        if self._has_failed:
            return
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o644)
                data = bytes(self._head + self._tail) + data
            unwritten = memoryview(data[: max(0, self._max_file_bytes - self._written)])
            self._written += len(unwritten)
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
        except OSError:  # /tmp is full, or the path is taken
            self._has_failed = True

    def bytes(self) -> bytes:
        """Return the text to show, cut at the ends of lines."""
        if self.total <= HEAD_BYTES + TAIL_BYTES:
            return bytes(self._head + self._tail)
        head, tail = bytes(self._head), bytes(self._tail[-TAIL_BYTES:])
        if b"\n" in head[HEAD_BYTES // 2 :]:
            head = head[: head.rindex(b"\n") + 1]
        if b"\n" in tail[: TAIL_BYTES // 2]:
            tail = tail[tail.index(b"\n") + 1 :]
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        location = f"all of it is in {self._path}"
        if self._has_failed:
            location = "there was no room for it in /tmp"
        elif self._written < self.total:
            location = f"the first {self._written} bytes of the output are in {self._path}"
        note = (
            f"[… {lines} lines, {self.total - len(head) - len(tail)} bytes are not shown: "
            f"{location} …]"
        )
        return head + (b"" if head.endswith(b"\n") else b"\n") + note.encode() + b"\n" + tail

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _create_git_folder(history: str, target: str) -> None:
    """Create a git directory with the history's objects as alternates, unless it exists."""
    if os.path.exists(f"{target}/HEAD"):
        return
    for folder in ("objects/info", "refs/heads", "info"):
        os.makedirs(f"{target}/{folder}", exist_ok=True)
    with open(f"{target}/objects/info/alternates", "wb") as file:
        file.write(f"{history}/objects\n".encode())
    names = [
        name for name in os.listdir(history) if name not in {"objects", "refs", "info", "HEAD"}
    ]
    for name in (
        *names,
        *(f"info/{name}" for name in os.listdir(f"{history}/info")),
        "HEAD",
    ):  # HEAD last: it marks the folder as complete
        with open(f"{history}/{name}", "rb") as source, open(f"{target}/{name}", "wb") as copy:
            while chunk := source.read(_COPY_BYTES):
                copy.write(chunk)


def _write_new(path: str, content: bytes) -> None:
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644),
        "wb",
    ) as file:
        file.write(content)


def _read_start(path: str, max_bytes: int) -> bytes:
    """Return the beginning of a file that code may have written, b'' if it is not a regular
    file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, max_bytes) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _keep_times(folder: str) -> Iterator[None]:
    """Restore a folder's times, because builds use them."""
    folder_stat = os.stat(folder)
    yield
    os.utime(folder, ns=(folder_stat.st_atime_ns, folder_stat.st_mtime_ns))
