"""Landlock: from here on this process and its children write beneath a few paths only.

Standard library only: it runs inside the sandbox, before anything else does.
"""

from __future__ import annotations

import ctypes
import os
import stat

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
