"""Ending what outlived the process that started it, also by `python -I -S orphans.py PREFIX`, which waits for that beside it.

Bubblewrap's inner process asks for its death signal a moment after it was made, and waits without end for the outer
one before that. Where the outer one is killed in that moment (a host that is killed, a start that is cancelled), the
inner one stays, with nobody above it. It is found by the name of its sandbox, which is the first word of its command line.
Standard library only: as a program this file stands alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_LOOKS, _PAUSE = 50, 0.1
_QUIET = 3  # looks at which nothing was found: what was just being made is there by then


def title(name: str) -> str:
    """Return the first word of the command line of a sandbox's processes."""
    return f"moothall-sandbox-{name}"


def end(prefix: str) -> int:
    """Kill the sandboxes whose name begins with `prefix`, with all that runs in them; return how many processes were found."""
    wanted, found = os.fsencode(title(prefix)), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            if (folder / "cmdline").read_bytes().startswith(wanted):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found


def main(prefix: str) -> None:
    """Wait for the end of the process that holds our stdin open, then end what is left of its sandboxes."""
    while os.read(0, 4096):
        pass
    quiet = 0
    for _ in range(_LOOKS):
        quiet = 0 if end(prefix) else quiet + 1
        if quiet == _QUIET:
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main(sys.argv[1])
