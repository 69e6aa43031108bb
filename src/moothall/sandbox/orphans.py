"""Ending sandboxes that outlived the process that started them.

`python -I -S orphans.py PREFIX FOLDER [CGROUPS…]` runs beside that process, waits for its end, and
then also removes the folder and the cgroups of its sandboxes.

Bubblewrap's inner process asks for its death signal a moment after it was made, and waits without
end for the outer
one before that. Where the outer one is killed in that moment (a host that is killed, a start that
is cancelled), the
inner one stays, with nobody above it. It is found by the name of its sandbox, which is the first
word of its command line. Standard library only: as a program this file stands alone.
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

GROUP = "moothall-"
"""The prefix of the names of cgroups of sandboxes."""
_LOOKS, _PAUSE = 50, 0.1
_QUIET = 3  # looks at which nothing was found: what was just being made is there by then


def title(name: str) -> str:
    """Return the first word of the command line of a sandbox's processes."""
    return f"moothall-sandbox-{name}"


def end(prefix: str) -> int:
    """Kill the sandboxes whose name begins with `prefix`, with all that runs in them; return how
    many processes were found.
    """
    wanted, found = os.fsencode(title(prefix)), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            if (folder / "cmdline").read_bytes().startswith(wanted):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found


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
    """Remove the run folder of a killed process, unless another process holds its lock to remove
    it.
    """
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove = ("rm", "-rf", "--one-file-system")
        for command in (
            remove,
            ("chmod", "-R", "u+rwX"),
            remove,
        ):  # hostile code may have set any mode
            if folder.exists():
                whole = (*command, "--", str(folder))
                subprocess.run(  # noqa: S603 - our own words
                    whole, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
    except OSError:
        return
    finally:
        os.close(lock)


def main(prefix: str, folder: str, *groups: str) -> None:
    """Wait for the end of the process that holds our stdin open, then end its sandboxes and remove
    what they left.
    """
    while os.read(0, 4096):
        pass
    quiet = 0
    for _ in range(_LOOKS):
        quiet = 0 if end(prefix) else quiet + 1
        if quiet >= _QUIET and remove_groups(f"{GROUP}{prefix}*", map(Path, groups)):
            break
        time.sleep(_PAUSE)
    remove_folder(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
