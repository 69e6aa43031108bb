"""The first process of a sandbox: mounts what bubblewrap cannot, drops root, and becomes
bubblewrap.

It runs as a script with the bare interpreter and reads its order, marshalled, from the descriptor
in argv[1]: the `parent` pid, the `uid` to drop to (or null), `cgroups` files to enter, `stage`
[[host path, name], …], `overlay` {lower: [...], upper, work} or null, the `program` to become and
its `argv`, and `descriptors` to leave open. All other descriptors above stderr are closed.

Everything happens in a private mount namespace, so the host never sees the mounts, and they vanish
with the last process. A tmpfs over /tmp holds the staged paths. The dropped uid can reach them
there although their parents, such as a home directory, are closed to it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import stat
import sys

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time, as `json` would
if TYPE_CHECKING:
    from typing import Any

STAGE = "/tmp"  # noqa: S108 - a mount point in a private namespace, not a shared folder
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIGKILL = 9
_STDERR = 2
FAILED = 70

_libc = ctypes.CDLL(None, use_errno=True)


def _require_success(result: int, action: str) -> None:
    if result:
        sys.exit(f"sandbox launcher: {action}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, filesystem_type: str, flags: int, data: str = "") -> None:
    _require_success(
        _libc.mount(
            source.encode(), target.encode(), filesystem_type.encode(), flags, data.encode()
        ),
        f"mount {filesystem_type or 'bind'} {target}",
    )


def _enter_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _require_success(_libc.unshare(_CLONE_NEWNS), "unshare mount namespace")
    else:
        _require_success(
            _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare user and mount namespace"
        )
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs start time
                file.write(text)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def _mount_stage(order: dict[str, Any]) -> None:
    overlay = order["overlay"]
    layers = [*overlay["lower"], overlay["upper"], overlay["work"]] if overlay else []
    # By descriptor, because paths may contain ':' and ',', and the tmpfs will hide some of them.
    layer_fds = [os.open(path, os.O_PATH) for path in layers]
    staged = [(os.open(path, os.O_PATH), name) for path, name in order["stage"]]
    _mount("tmpfs", STAGE, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    if overlay:
        lower = ":".join(f"/proc/self/fd/{fd}" for fd in layer_fds[:-2])
        os.mkdir(f"{STAGE}/overlay")  # noqa: PTH102 - pathlib costs start time
        upper, work = (f"/proc/self/fd/{fd}" for fd in layer_fds[-2:])
        options = f"userxattr,lowerdir={lower},upperdir={upper},workdir={work}"
        _mount("overlay", f"{STAGE}/overlay", "overlay", _MS_NOSUID | _MS_NODEV, options)
    for descriptor, name in staged:
        target = f"{STAGE}/{name}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target)  # noqa: PTH102 - as above
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _mount(f"/proc/self/fd/{descriptor}", target, "", _MS_BIND | _MS_REC)
    for descriptor in (*layer_fds, *(descriptor for descriptor, _ in staged)):
        os.close(descriptor)


def _close_all_but(descriptors: tuple[int, ...]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib costs start time
        if int(name) > _STDERR and int(name) not in descriptors:
            try:  # noqa: SIM105 - contextlib costs start time
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing


def main() -> None:
    """Execute the order; never returns."""
    with open(int(sys.argv[1]), "rb") as file:  # noqa: PTH123 - a descriptor, no path
        order = marshal.load(file)  # noqa: S302 - from the process that started this one, the same Python
    _close_all_but(order["descriptors"])
    for path in order["cgroups"]:
        with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs start time
            file.write(str(os.getpid()))
    _enter_namespaces()
    _mount_stage(order)
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    # Changing the uid clears the death signal, so it is set afterwards; bubblewrap then sets its
    # own.
    _require_success(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "death signal")
    _require_success(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if os.getppid() != order["parent"]:
        sys.exit("sandbox launcher: the parent is gone")
    os.execv(order["program"], order["argv"])  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.stderr.write(f"sandbox launcher: {error}\n")
        sys.exit(FAILED)
