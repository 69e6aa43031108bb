"""Opening paths inside a workspace, and nowhere else. Standard library only: runs in the executor.

The kernel resolves (openat2 with RESOLVE_BENEATH): symlinks are followed while they stay inside,
and
what is checked is what is opened, whatever else happens to the tree meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_OPENAT2 = 437  # the same on every architecture
_NO_MAGIC_LINKS, _BENEATH = 0x02, 0x08
_TRIES = 8
MAX_PATH = 1000

_libc = ctypes.CDLL(None, use_errno=True)


class ToolFailure(Exception):
    """What the model is told: a failed tool is a result, no error of ours. `status` is a tool
    status; `output` is returned with it.
    """

    def __init__(
        self, message: str, status: str = "error", output: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.output = output

    def answer(self) -> dict[str, Any]:
        """Return the failure as an answer of the executor."""
        return {
            "status": self.status,
            "error": str(self),
            **({"output": self.output} if self.output else {}),
        }


class IsFolder(ToolFailure):
    """A folder where a file is needed."""

    def __init__(self, path: str, output: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{path or '.'!r} is a folder, not a file", output=output)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def clean(path: str) -> str:
    """Return a relative path without '.', '//' or a trailing '/'; '' is the workspace itself."""
    if "\0" in path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH:
        raise ToolFailure(
            f"{path[:80]!r} is no path: at most {MAX_PATH} bytes and no NUL", "invalid"
        )
    if path.startswith("/"):
        raise ToolFailure(
            f"{path!r} is absolute; paths are relative to the workspace, e.g. 'src/app.py'",
            "invalid",
        )
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def clean_for_writing(path: str) -> str:
    """As `clean`, and refuse what no tool may change."""
    wanted = clean(path)
    parts = wanted.split("/")
    if not wanted or parts[-1] == "..":
        raise ToolFailure(f"{path!r} names a folder; name a file in it", "invalid")
    if any(part.lower() == ".git" for part in parts):
        raise ToolFailure(
            f"{path!r}: git's own files are not part of the workspace; use the git tools", "invalid"
        )
    return wanted


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` (already clean) beneath the directory `root`; raises `ToolFailure` where it leads
    out.
    """
    how = _How(flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGIC_LINKS)
    raw = os.fsencode(path or ".")
    for _ in range(_TRIES):
        found = int(
            _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(root),
                raw,
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        )
        if found >= 0:
            return found
        code = ctypes.get_errno()
        if code not in {
            errno.EAGAIN,
            errno.EINTR,
        }:  # EAGAIN: something moved while '..' was resolved
            break
    raise failure(code, path)


DISK_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""The error numbers of a disk limit."""


def failure(code: int, path: str) -> ToolFailure:
    """Return what to tell the model of an errno on `path`."""
    shown = path or "."
    known = {
        errno.EXDEV: (f"{shown!r} leads out of the workspace", "invalid"),
        errno.ENOENT: (f"{shown!r} does not exist", "error"),
        errno.ENOTDIR: (f"{shown!r}: a part of the path is a file, not a folder", "error"),
        errno.EISDIR: (f"{shown!r} is a folder", "error"),
        errno.ELOOP: (f"{shown!r}: symlinks in a circle", "error"),
        errno.ENAMETOOLONG: (f"{shown!r}: a name is too long", "invalid"),
        errno.ENOSPC: (f"{shown!r}: the disk is full", "disk"),
        errno.EFBIG: (f"{shown!r} would be larger than a file may be", "disk"),
        errno.EDQUOT: (f"{shown!r}: the disk quota is used up", "disk"),
    }
    message, status = known.get(code, (f"{shown!r}: {os.strerror(code)}", "error"))
    return ToolFailure(message, status)


def open_parent(root: int, path: str) -> tuple[int, str]:
    """Return (descriptor of the folder that `path` lies in, its last name)."""
    parent, _, name = path.rpartition("/")
    return open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY), name


def make_folders(root: int, path: str) -> None:
    """Make `path` and its parents, beneath `root`."""
    done = ""
    for part in path.split("/"):
        above, done = done, f"{done}/{part}" if done else part
        if part == "..":
            continue
        holder = open_beneath(root, above, os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(part, 0o755, dir_fd=holder)
        except FileExistsError:
            pass
        except OSError as error:
            raise failure(error.errno or 0, done) from error
        finally:
            os.close(holder)
    os.close(open_beneath(root, path, os.O_PATH | os.O_DIRECTORY))
