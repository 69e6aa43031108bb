"""The description of a sandbox, and the bubblewrap command line that creates it. A BPF program
for bubblewrap that denies the system calls that nothing in a sandbox needs.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.config import SandboxSettings
from moothall.errors import SandboxUnavailable
from moothall.sandbox import orphans
from moothall.sandbox_runtime.confinement import EXECUTOR_PID

# A BPF program for bubblewrap that denies the system calls that nothing in a sandbox needs.


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


# The description of a sandbox, and the bubblewrap command line that creates it.


WORKSPACE = "/workspace"
ENVIRONMENT = "/env"
HOSTNAME = "workspace"
USER = "agent"
UID = 1000
STAGE = "/tmp"  # noqa: S108 - where the launcher mounts its private tmpfs

MEND_BUBBLEWRAP = "install bubblewrap 0.8 or newer, e.g. apt-get install bubblewrap"

_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_NAMES = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "maven/logging",
    "maven/m2.conf",  # beside it settings.xml, which may contain passwords
    "mime.types",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_CONFINEMENT = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--cap-drop",
    "ALL",
    "--uid",
    str(UID),
    "--gid",
    str(UID),
    "--hostname",
    HOSTNAME,
)


@dataclass(frozen=True, slots=True)
class Overlay:
    """The contents of /workspace: `lower` (topmost first) is never written, `upper` receives all
    changes.
    """

    lower: tuple[Path, ...]
    upper: Path
    work: Path


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox. `ro` and `rw` are (host path, inside path); `argv` inherits `fds`.

    The environment inside is exactly `env`. `name` labels the cgroup. `log` is the file for the
    process's stderr.
    """

    name: str
    argv: tuple[str, ...]
    limits: SandboxSettings
    ro: tuple[tuple[Path, str], ...] = ()
    rw: tuple[tuple[Path, str], ...] = ()
    overlay: Overlay | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    fds: tuple[int, ...] = ()
    log: Path | None = None


def interpreter() -> Path:
    """Return this Python's own binary, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def interpreter_binds() -> tuple[tuple[Path, str], ...]:
    """Return the folders this Python needs inside: its prefixes, unless they are under /usr."""
    prefixes = dict.fromkeys(
        Path(path).resolve() for path in (sys.base_prefix, sys.base_exec_prefix)
    )
    return tuple((prefix, str(prefix)) for prefix in prefixes if not prefix.is_relative_to("/usr"))


def package_bind() -> tuple[Path, str]:
    """Return the bind of our own package, so that the executor can run inside."""
    return Path(__file__).resolve().parent.parent, "/opt/moothall/moothall"


def bubblewrap() -> str:
    """Return the path of bubblewrap; raises `SandboxUnavailable`."""
    path = shutil.which("bwrap")
    if not path:
        raise SandboxUnavailable(f"bubblewrap: not found on PATH; {MEND_BUBBLEWRAP}")
    return path


def _system_arguments() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        host = Path("/", name)
        if host.is_symlink():
            arguments += ["--symlink", str(host.readlink()), str(host)]
        elif host.is_dir():
            arguments += ["--ro-bind", str(host), str(host)]
    for name in _ETC_NAMES:
        host = Path("/etc", name)
        if host.exists():
            arguments += ["--ro-bind", str(host.resolve()), str(host)]
    return arguments


def _stage_binds(spec: SandboxSpec) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what the launcher stages, and the bubblewrap arguments that bind it from there."""
    stage: list[tuple[str, str]] = []
    arguments: list[str] = []
    for option, binds in (("--ro-bind", spec.ro), ("--bind", spec.rw)):
        for host, inside in binds:
            stage.append((str(host), str(len(stage))))
            arguments += [option, f"{STAGE}/{len(stage) - 1}", inside]
    return stage, arguments


def _temporary_folder(path: str, size: int) -> tuple[str, ...]:
    """Return the arguments for a folder in memory that everyone may write to."""
    return ("--perms", "1777", "--size", str(max(size, 1_000_000)), "--tmpfs", path)


def _workspace_arguments(spec: SandboxSpec) -> tuple[str, ...]:
    if spec.overlay:
        return ("--bind", f"{STAGE}/overlay", WORKSPACE)
    has_workspace = any(inside == WORKSPACE for _, inside in spec.rw)
    return () if has_workspace else ("--tmpfs", WORKSPACE)


def command(
    spec: SandboxSpec, *, seccomp: int | None, accounts: Mapping[str, int]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (what to stage, bubblewrap's argv, whose first word names the sandbox). `accounts` are
    descriptors of the files passwd, group and hosts.
    """
    stage, binds = _stage_binds(spec)
    memory = spec.limits.memory_bytes
    argv = [
        orphans.process_title(spec.name),  # by which an orphaned sandbox is found
        *_CONFINEMENT,
        *_system_arguments(),
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *_temporary_folder("/dev/shm", memory // 8),  # noqa: S108 - inside
        *_temporary_folder("/tmp", memory // 2),  # noqa: S108 - inside
        *(
            part
            for name, fd in accounts.items()
            for part in ("--ro-bind-data", str(fd), f"/etc/{name}")
        ),
        *binds,
        *_workspace_arguments(spec),
        "--remount-ro",
        "/",
        "--chdir",
        WORKSPACE,
        *(part for name, value in spec.env.items() for part in ("--setenv", name, value)),
        *(("--seccomp", str(seccomp)) if seccomp is not None else ()),
        "--",
        *spec.argv,
    ]
    return stage, argv
