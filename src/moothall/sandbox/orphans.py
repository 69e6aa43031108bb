"""Ending what outlived the process that started it.

Bubblewrap's inner process asks for its death signal a moment after it was made, and waits without end for the outer
one before that. Where the outer one is killed in that moment (a host that is killed, a start that is cancelled), the
inner one stays, with nobody above it. It is found by the name of its sandbox, which is the first word of its command line.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


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
