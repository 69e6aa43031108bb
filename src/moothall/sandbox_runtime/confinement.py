"""The first steps of a process in a sandbox: it restricts itself. Landlock limits the paths under
which it and its children may write.

Standard library only, because it runs inside the sandbox before anything else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import struct

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_ABI_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_TRUNCATE = 1 << 14
_DIRECTORY_WRITES = sum(1 << bit for bit in range(4, 13))  # REMOVE_DIR … MAKE_SYM
_REFER = 1 << 13


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def abi() -> int:
    """Return the kernel's Landlock version; raises `OSError` where there is none."""
    return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_VERSION))


def _rights_handled(version: int) -> int:
    handled = _WRITE_FILE | _DIRECTORY_WRITES
    if version >= 2:  # noqa: PLR2004 - the ABI that brought the right
        handled |= _REFER
    if version >= 3:  # noqa: PLR2004 - as above
        handled |= _TRUNCATE
    return handled


def allow_writes_only(paths: Iterable[str]) -> int:
    """Refuse every write that is not beneath `paths` (those that exist) and return the ABI version.

    Raises `OSError` where the kernel has no Landlock: the caller decides that this is the end.
    """
    version = abi()
    handled = _rights_handled(version)
    attributes = _RulesetAttr(handled)
    ruleset = _syscall(
        _CREATE_RULESET,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
        ctypes.c_uint32(0),
    )
    try:
        for path in paths:
            if not os.path.exists(path):  # noqa: PTH110 - pathlib costs start time here
                continue
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                wanted = (
                    handled
                    if stat.S_ISDIR(os.fstat(target).st_mode)
                    else handled & (_WRITE_FILE | _TRUNCATE)
                )
                rule = _PathBeneath(wanted, target)
                _syscall(
                    _ADD_RULE,
                    ctypes.c_int(ruleset),
                    ctypes.c_int(_RULE_PATH_BENEATH),
                    ctypes.byref(rule),
                    ctypes.c_uint32(0),
                )
            finally:
                os.close(target)
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return version


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
