"""What a process does first inside a sandbox: it shuts itself in. Standard library only."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

from moothall.sandbox_runtime.landlock import allow_writes_only

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

BOOT = "import sys; sys.path.insert(0, '/opt/moothall'); from {module} import main; main()"
ROOT = "/workspace"
HOME = "/tmp/home"  # noqa: S108 - inside the sandbox
_WRITABLE = (
    ROOT,
    "/tmp",  # noqa: S108 - inside the sandbox
    "/dev/shm",  # noqa: S108 - inside the sandbox
    *(
        f"/dev/{name}"
        for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
    ),
)
EXECUTOR_PID = 2
"""In its pid namespace, whose init is bubblewrap."""
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP, _FILTER = 22, 2
_KILL = {"x86_64": 62, "aarch64": 129}
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06  # of a word; jump where equal
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def shut_in(options: Mapping[str, Any]) -> int:
    """Apply what holds for this process and all that it starts; return Landlock's ABI, 0 where
    there is none.

    `options`: writable (paths beside the usual ones), landlock (whether it must be there),
    open_files, processes, own_users (whether the user namespace is the sandbox's own: where it is a
    node's, the kernel would count the processes of others). Raises `OSError` where a wall cannot be
    raised.
    """
    # No one in here may look into this process's memory: they share its uid.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        version = allow_writes_only((*_WRITABLE, *options["writable"]))
    except OSError:
        if options["landlock"]:
            raise
        version = 0
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, options["open_files"])]
    if options.get("own_users", True):  # counted in this user namespace: this process, and init
        limits.append((resource.RLIMIT_NPROC, options["processes"] + 2))
    for limit, value in limits:
        resource.setrlimit(limit, (value, value))
    os.umask(0o022)
    os.makedirs(HOME, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    return version


def spare_the_others() -> None:
    """From here on this process and its children cannot signal everybody at once, which would end
    the executor too.

    Raises `OSError`. All other ways to signal it are closed to the whole sandbox.
    """
    number = _KILL.get(os.uname().machine)
    if number is None:
        return  # its calls are not known; an executor that is ended is replaced
    lines = (
        (_LOAD, 0, 0, 0),  # the call's number
        (_IS, 0, 3, number),
        (_LOAD, 0, 0, 16),  # the lower half of its first argument
        (_IS, 0, 1, 0xFFFFFFFF),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("=HxxxxxxQ", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0):
        why = ctypes.get_errno()
        if why not in {
            errno.EINVAL,
            errno.ENOSYS,
        }:  # a kernel without such filters: the probe has told, and was overruled
            raise OSError(why, f"seccomp: {os.strerror(why)}")
