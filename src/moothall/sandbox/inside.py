"""What a process does first inside a sandbox: it shuts itself in. Standard library only."""

from __future__ import annotations

import ctypes
import os
import resource

from moothall.sandbox.landlock import allow_writes_only

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
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")),
)
_PR_SET_DUMPABLE = 4


def shut_in(options: Mapping[str, Any]) -> int:
    """Apply what holds for this process and all that it starts; return Landlock's ABI, 0 where there is none.

    `options`: writable (paths beside the usual ones), landlock (whether it must be there), open_files,
    processes. Raises `OSError` where a wall cannot be raised.
    """
    # No one in here may look into this process's memory: they share its uid.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        version = allow_writes_only((*_WRITABLE, *options["writable"]))
    except OSError:
        if options["landlock"]:
            raise
        version = 0
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, options["open_files"]),
        (resource.RLIMIT_NPROC, options["processes"] + 2),  # counted in this user namespace: this process, and init
    ):
        resource.setrlimit(limit, (value, value))
    os.umask(0o022)
    os.makedirs(HOME, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    return version
