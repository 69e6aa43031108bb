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
TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
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
"""The executor's pid in its namespace, whose init is bubblewrap."""
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_KILL_SYSCALL = {"x86_64": 62, "aarch64": 129}
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF instructions
_RETURN_ALLOW, _RETURN_EPERM = 0x7FFF0000, 0x00050000 | errno.EPERM
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
    """Return the kernel's Landlock version. Raises `OSError` if it has no Landlock."""
    return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_VERSION))


def _rights_handled(version: int) -> int:
    rights = _WRITE_FILE | _DIRECTORY_WRITES
    if version >= 2:  # noqa: PLR2004 - the ABI that brought the right
        rights |= _REFER
    if version >= 3:  # noqa: PLR2004 - as above
        rights |= _TRUNCATE
    return rights


def allow_writes_only(paths: Iterable[str]) -> int:
    """Refuse all writes that are not beneath `paths` (those that exist) and return the ABI version.

    Raises `OSError` if the kernel has no Landlock.
    """
    version = abi()
    rights = _rights_handled(version)
    attributes = _RulesetAttr(rights)
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
                access = (
                    rights
                    if stat.S_ISDIR(os.fstat(target).st_mode)
                    else rights & (_WRITE_FILE | _TRUNCATE)
                )
                rule = _PathBeneath(access, target)
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


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def confine(options: Mapping[str, Any]) -> int:
    """Restrict this process and its children. Return Landlock's ABI version, or 0.

    `options`: writable (additional paths), landlock (whether it is required), open_files,
    processes, own_users (whether the sandbox has its own user namespace; in the node's namespace,
    the kernel would count the processes of others). Raises `OSError` if a restriction fails.
    """
    # Processes with the same uid must not read this process's memory.
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


def block_signals_to_all() -> None:
    """Prevent this process and its children from signalling all processes at once, which would kill
    the executor too.

    Raises `OSError`. The sandbox already blocks all other ways to signal the executor.
    """
    number = _KILL_SYSCALL.get(os.uname().machine)
    if number is None:
        return  # unknown system calls; a killed executor is replaced
    instructions = (
        (_LOAD_WORD, 0, 0, 0),  # the system call's number
        (_JUMP_IF_EQUAL, 0, 3, number),
        (_LOAD_WORD, 0, 0, 16),  # the lower half of its first argument
        (_JUMP_IF_EQUAL, 0, 1, 0xFFFFFFFF),
        (_RETURN, 0, 0, _RETURN_EPERM),
        (_RETURN, 0, 0, _RETURN_ALLOW),
    )
    filter_code = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    )
    program = struct.pack("=HxxxxxxQ", len(instructions), ctypes.addressof(filter_code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0):
        code = ctypes.get_errno()
        if code not in {
            errno.EINVAL,
            errno.ENOSYS,
        }:  # no seccomp filters: the probe reported it, and the operator accepted it
            raise OSError(code, f"seccomp: {os.strerror(code)}")
