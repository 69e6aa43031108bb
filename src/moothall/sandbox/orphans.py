"""Kills sandboxes that outlived the process that started them.

`python -I -S orphans.py PREFIX FOLDER [CGROUPS…]` waits until the end of that process closes its
stdin, and then also removes the folder and the cgroups of its sandboxes.

Bubblewrap's inner process requests its death signal only a moment after it was created, and before
that it waits without limit for the outer one. If the outer one is killed in that moment (the host
process is killed, or a start is cancelled), the inner one stays without a parent. It is found by
the name of its sandbox, the first word of its command line. This file uses only the standard
library, since it also runs as a program on its own.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GROUP_PREFIX = "moothall-"
"""The prefix of the names of all sandbox cgroups."""
_MAX_SCANS, _PAUSE_SECONDS = 50, 0.1
_EMPTY_SCANS = 3  # scans without a find; a process that was just being created is there by then


def process_title(name: str) -> str:
    """Return the first word of the command line of a sandbox's processes."""
    return f"moothall-sandbox-{name}"


def kill_sandboxes(prefix: str) -> int:
    """Kill the sandboxes whose name begins with `prefix`, with all their processes; return how many
    processes were found.
    """
    title, count = os.fsencode(process_title(prefix)), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or is not ours
            if (folder / "cmdline").read_bytes().startswith(title):
                os.kill(int(folder.name), signal.SIGKILL)
                count += 1
    return count


def remove_groups(pattern: str, parents: Iterable[Path]) -> bool:
    """Remove the empty cgroups below `parents` whose names match; return whether none is left.

    A cgroup cannot be removed while it holds a dying process.
    """
    clean = True
    for parent in parents:
        for folder in parent.glob(pattern):
            try:
                folder.rmdir()
            except OSError:
                clean = clean and not folder.exists()
    return clean


def remove_folder(folder: Path) -> None:
    """Remove the run folder of a killed process, unless another process that removes it holds its
    lock.
    """
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove = ("rm", "-rf", "--one-file-system")
        # the code that ran there may have set any file mode
        for command in (remove, ("chmod", "-R", "u+rwX"), remove):
            if folder.exists():
                argv = (*command, "--", str(folder))
                subprocess.run(  # noqa: S603 - our own words
                    argv, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
    except OSError:
        return
    finally:
        os.close(lock)


def main(prefix: str, folder: str, *groups: str) -> None:
    """Wait for the end of the process that holds our stdin open, then kill its sandboxes and remove
    what they left.
    """
    while os.read(0, 4096):
        pass
    empty_scans = 0
    for _ in range(_MAX_SCANS):
        empty_scans = 0 if kill_sandboxes(prefix) else empty_scans + 1
        if empty_scans >= _EMPTY_SCANS and remove_groups(
            f"{GROUP_PREFIX}{prefix}*", map(Path, groups)
        ):
            break
        time.sleep(_PAUSE_SECONDS)
    remove_folder(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
