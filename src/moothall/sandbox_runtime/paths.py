"""Opening of paths inside a workspace only. Standard library only: runs in the executor.

The kernel resolves paths (openat2 with RESOLVE_BENEATH). It follows symlinks that stay inside, and
the path that is checked is the one that is opened, even if the tree changes meanwhile.
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
_RESOLVE_NO_MAGIC_LINKS, _RESOLVE_BENEATH = 0x02, 0x08
_MAX_TRIES = 8
MAX_PATH = 1000

_libc = ctypes.CDLL(None, use_errno=True)


class ToolFailure(Exception):
    """A failed tool call: a result for the model, not an error of the executor. `status` is a tool
    status; `output` is returned with it.
    """

    def __init__(
        self, message: str, status: str = "error", output: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.output = output

    def answer(self) -> dict[str, Any]:
        """Return the failure as a response of the executor."""
        return {
            "status": self.status,
            "error": str(self),
            **({"output": self.output} if self.output else {}),
        }


class IsFolder(ToolFailure):
    """A folder where a file is needed."""

    def __init__(self, path: str, output: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{path or '.'!r} is a folder, not a file", output=output)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def clean(path: str) -> str:
    """Return a relative path without '.', '//' or a trailing '/'; '' is the workspace itself."""
    if "\0" in path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH:
        raise ToolFailure(
            f"{path[:80]!r} is not a valid path: use at most {MAX_PATH} bytes and no NUL",
            "invalid",
        )
    if path.startswith("/"):
        raise ToolFailure(
            f"{path!r} is absolute; paths are relative to the workspace, e.g. 'src/app.py'",
            "invalid",
        )
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def clean_for_writing(path: str) -> str:
    """Return a clean path like `clean`; refuse paths that no tool may change."""
    cleaned = clean(path)
    parts = cleaned.split("/")
    if not cleaned or parts[-1] == "..":
        raise ToolFailure(f"{path!r} names a folder; name a file in it", "invalid")
    if any(part.lower() == ".git" for part in parts):
        raise ToolFailure(
            f"{path!r}: git's own files are not part of the workspace; use the git tools", "invalid"
        )
    return cleaned


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path`, which must be clean, beneath the directory `root`. Raises `ToolFailure` if the
    path leads out of it.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _RESOLVE_BENEATH | _RESOLVE_NO_MAGIC_LINKS)
    encoded_path = os.fsencode(path or ".")
    for _ in range(_MAX_TRIES):
        descriptor = int(
            _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(root),
                encoded_path,
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        )
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in {
            errno.EAGAIN,
            errno.EINTR,
        }:  # EAGAIN: a rename while '..' was resolved
            break
    raise failure(code, path)


DISK_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""The error numbers of a disk limit."""


def failure(code: int, path: str) -> ToolFailure:
    """Return the failure of a system call on `path`."""
    shown_path = path or "."
    messages = {
        errno.EXDEV: (f"{shown_path!r} leads out of the workspace", "invalid"),
        errno.ENOENT: (f"{shown_path!r} does not exist", "error"),
        errno.ENOTDIR: (f"{shown_path!r}: a part of the path is a file, not a folder", "error"),
        errno.EISDIR: (f"{shown_path!r} is a folder", "error"),
        errno.ELOOP: (f"{shown_path!r}: symlinks in a circle", "error"),
        errno.ENAMETOOLONG: (f"{shown_path!r}: a name is too long", "invalid"),
        errno.ENOSPC: (f"{shown_path!r}: the disk is full", "disk"),
        errno.EFBIG: (f"{shown_path!r} would be larger than a file may be", "disk"),
        errno.EDQUOT: (f"{shown_path!r}: the disk quota is used up", "disk"),
    }
    message, status = messages.get(code, (f"{shown_path!r}: {os.strerror(code)}", "error"))
    return ToolFailure(message, status)


def open_parent(root: int, path: str) -> tuple[int, str]:
    """Return a descriptor of the parent folder of `path`, and the last name of the path."""
    parent, _, name = path.rpartition("/")
    return open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY), name


def make_folders(root: int, path: str) -> None:
    """Create `path` and its parents, beneath `root`."""
    created = ""
    for part in path.split("/"):
        parent, created = created, f"{created}/{part}" if created else part
        if part == "..":
            continue
        parent_fd = open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(part, 0o755, dir_fd=parent_fd)
        except FileExistsError:
            pass
        except OSError as error:
            raise failure(error.errno or 0, created) from error
        finally:
            os.close(parent_fd)
    os.close(open_beneath(root, path, os.O_PATH | os.O_DIRECTORY))
