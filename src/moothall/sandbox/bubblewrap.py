"""The description of a sandbox, and the bubblewrap command line that creates it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moothall.config import SandboxSettings
from moothall.errors import SandboxUnavailable
from moothall.sandbox import orphans

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
