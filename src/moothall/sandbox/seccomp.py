"""A BPF program for bubblewrap that denies the system calls that nothing in a sandbox needs."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import tempfile
from typing import Any

from moothall.errors import SandboxUnavailable
from moothall.sandbox_runtime.confinement import EXECUTOR_PID

MEND = "install libseccomp, e.g. apt-get install libseccomp2"

DENIED = (
    "acct",
    "add_key",
    "adjtimex",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "ioprio_set",  # nobody inside may take I/O priority from other processes on the machine
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    # its target is behind a descriptor, which a filter cannot inspect; kill(2) is enough
    "pidfd_send_signal",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "vhangup",
    "vmsplice",
)

# clone(2) with any of these flags creates a namespace.
_NAMESPACE_FLAGS = (
    0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)
_AF_VSOCK = 40  # reaches the host of a virtual machine, and ignores network namespaces
_TIOCSTI = 0x5412  # inserts input into the terminal that started us
_TIOCLINUX = 0x541C
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_PR_SET_SECCOMP, _FILTER = 22, 2
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15


def _kernel_has_filters() -> bool:
    """Install a filter at an invalid address: a kernel with filters complains about the address,
    one without them about the request.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.prctl(_PR_SET_SECCOMP, _FILTER, None, 0, 0) == -1
        and ctypes.get_errno() == errno.EFAULT
    )


@functools.cache
def program() -> bytes:
    """Return the filter. Denied calls fail with EPERM; other architectures' calls kill the caller.

    Raises `SandboxUnavailable` without libseccomp, and on a kernel without filters.
    """
    if not _kernel_has_filters():
        raise SandboxUnavailable(
            "seccomp: the kernel has no filters of system calls; use one with CONFIG_SECCOMP_FILTER"
        )
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"seccomp: libseccomp cannot be loaded ({error}); {MEND}"
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for name in DENIED:
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:
            rules.add_rule(refuse, name)
    for bit in (1 << n for n in range(32) if _NAMESPACE_FLAGS & (1 << n)):
        rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, bit, bit))
    rules.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0xFFFFFFFF, _AF_VSOCK))
    # Its flags are in memory, which a filter cannot inspect; libc falls back to clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for request in (_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP):
        rules.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    _protect_executor(rules, refuse)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _protect_executor(rules: Any, refuse: int) -> None:
    """Protect the executor from the processes it runs. They have its uid and could end, stop or
    starve it: by a signal, by a signal that the kernel sends for a file, or by limits.

    The last way, `kill(-1)`, is needed by the executor itself: see
    `moothall.sandbox_runtime.confinement.block_signals_to_all`.
    """
    import pyseccomp

    def low(argument: int, value: int) -> Any:
        return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, 0xFFFFFFFF, value & 0xFFFFFFFF)

    for pid in (EXECUTOR_PID, -EXECUTOR_PID):
        rules.add_rule(refuse, "kill", low(0, pid))
    for name in ("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        rules.add_rule(refuse, name, low(0, EXECUTOR_PID))
    for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):
        rules.add_rule(refuse, "fcntl", low(1, command))
    rules.add_rule(refuse, "prlimit64", pyseccomp.Arg(0, pyseccomp.NE, 0))
    for argument in (0, 1):  # a process may lower only its own priority
        rules.add_rule(refuse, "setpriority", pyseccomp.Arg(argument, pyseccomp.NE, 0))


def program_fd() -> int:
    """Return a new descriptor from which bubblewrap reads the filter; the caller must close it."""
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, program())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
