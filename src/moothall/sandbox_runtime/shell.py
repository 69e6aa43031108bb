"""What the shell of a workspace has beside a plain command: a folder that stays, a file for long
output, and git.

Git reads a directory of the host's that nobody can write to. What it writes itself (index, refs,
new objects) lies in the sandbox's /tmp, and `/workspace/.git` leads there while a command of the
shell runs: checks never see it. Standard library only: part of the executor.
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
_FILES = 10
_FILE_BYTES = 10_000_000
_FILE_SHARE = 64  # of the memory that commands may use, which is where /tmp lies
_PATH_BYTES = 4096
_COPIED = 1 << 20
_TRUSTED = b"[safe]\n\tdirectory = *\n"
_LINK = f"gitdir: {FOLDER}/git\n".encode()


class Shell:
    """What stays from one command to the next. One an executor."""

    def __init__(self, memory_bytes: int) -> None:
        self.folder = ROOT
        self._file_bytes = min(_FILE_BYTES, memory_bytes // _FILE_SHARE)
        self._number = 0

    def begin(self) -> str:
        """Return a note where the folder that stayed is gone, and go back to the top; '' where it
        is there.
        """
        with contextlib.suppress(OSError):
            os.makedirs(FOLDER, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(f"{FOLDER}/folder")
            except IsADirectoryError:  # code put one there
                os.rename(f"{FOLDER}/folder", f"{FOLDER}/folder.{os.urandom(8).hex()}")
        gone, self.folder = self.folder, self.folder if os.path.isdir(self.folder) else ROOT
        return f"{gone} is gone; the command ran in {ROOT}" if gone != self.folder else ""

    def end(self) -> None:
        """Take over the folder in which a command ended. One that was killed leaves it as it
        was.
        """
        found = os.fsdecode(_read(f"{FOLDER}/folder", _PATH_BYTES).removesuffix(b"\n"))
        if os.path.isabs(found) and "\0" not in found and os.path.isdir(found):
            self.folder = found

    def output(self) -> Output:
        """Return what keeps the next command's output."""
        self._number += 1
        return Output(f"{FOLDER}/output-{self._number}.txt", self._file_bytes)

    def tidy(self) -> None:
        """Remove all but the newest outputs."""
        with contextlib.suppress(OSError):
            os.unlink(f"{FOLDER}/output-{self._number - _FILES}.txt")

    @contextlib.contextmanager
    def git(self, history: str) -> Iterator[None]:
        """Let git find the history while a command runs, unless the workspace has a `.git` of its
        own.
        """
        link = os.path.join(ROOT, ".git")
        shown = False
        if history and not os.path.lexists(link):
            with contextlib.suppress(OSError), _same_times(ROOT):
                _lay_out(history, f"{FOLDER}/git")
                if os.stat(ROOT).st_uid != os.geteuid() and not os.path.lexists(
                    f"{HOME}/.gitconfig"
                ):
                    _write_new(
                        f"{HOME}/.gitconfig", _TRUSTED
                    )  # as in pods, whose volumes belong to root
                _write_new(link, _LINK)
                shown = True
        try:
            yield
        finally:
            if shown and _read(link, len(_LINK) + 1) == _LINK:
                with contextlib.suppress(OSError), _same_times(ROOT):
                    os.unlink(link)


class Output:
    """Head and tail of what is printed; once that is not all of it, the whole goes to a file, as
    far as that may grow.
    """

    def __init__(self, path: str, most: int) -> None:
        self._path, self._most = path, most
        self._head, self._tail = bytearray(), bytearray()
        self._file = -1
        self._written = self._lines = self.total = 0
        self._lost = False

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        self.total += len(data)
        self._lines += data.count(b"\n")
        if self.total > HEAD_BYTES + TAIL_BYTES:
            self._store(data)
        room = max(0, HEAD_BYTES - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def _store(self, data: bytes) -> None:
        if self._lost:
            return
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o644)
                data = bytes(self._head + self._tail) + data
            left = memoryview(data[: max(0, self._most - self._written)])
            self._written += len(left)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:  # no room is left in /tmp, or somebody put something in its place
            self._lost = True

    def bytes(self) -> bytes:
        """Return what is shown, cut at the ends of lines."""
        if self.total <= HEAD_BYTES + TAIL_BYTES:
            return bytes(self._head + self._tail)
        head, tail = bytes(self._head), bytes(self._tail[-TAIL_BYTES:])
        if b"\n" in head[HEAD_BYTES // 2 :]:
            head = head[: head.rindex(b"\n") + 1]
        if b"\n" in tail[: TAIL_BYTES // 2]:
            tail = tail[tail.index(b"\n") + 1 :]
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        where = f"all of it is in {self._path}"
        if self._lost:
            where = "there was no room for it in /tmp"
        elif self._written < self.total:
            where = f"the first {self._written} bytes of the output are in {self._path}"
        note = (
            f"[… {lines} lines, {self.total - len(head) - len(tail)} bytes are not shown: {where} "
            "…]"
        )
        return head + (b"" if head.endswith(b"\n") else b"\n") + note.encode() + b"\n" + tail

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _lay_out(history: str, target: str) -> None:
    """Make a git directory whose objects are those of `history` and whose own it adds, unless it is
    there.
    """
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
    ):  # HEAD last: with it, it is whole
        with open(f"{history}/{name}", "rb") as source, open(f"{target}/{name}", "wb") as copy:
            while piece := source.read(_COPIED):
                copy.write(piece)


def _write_new(path: str, content: bytes) -> None:
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644),
        "wb",
    ) as file:
        file.write(content)


def _read(path: str, most: int) -> bytes:
    """Return the beginning of a file that code may have written; nothing of what is no regular
    file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _same_times(folder: str) -> Iterator[None]:
    """Leave a folder with the times that it had: builds look at them."""
    was = os.stat(folder)
    yield
    os.utime(folder, ns=(was.st_atime_ns, was.st_mtime_ns))
