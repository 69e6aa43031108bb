"""Clears away a Ray of our own whose parent was killed: `python -I -S reaper.py DIRECTORY`.

Its stdin is held open by the parent alone, so that it ends with it, however that goes. Then
whatever still names
the directory (Ray's servers and agents would live for another minute) is killed and the directory
removed. Stands
alone: nothing of ours and nothing of others is imported.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SECONDS = 30.0
_TITLE = b"ray::"


def find_processes(directory: str) -> Iterator[int]:
    """Yield the other processes whose command line or environment names the directory.

    Ray's own processes overwrite both with a title, so they are also found by a file they have open
    there. For others that is not enough: the owner has files open there too, and so may a person
    who reads a log.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            command = (folder / "cmdline").read_bytes()
            is_named = os.fsencode(directory) in command + (folder / "environ").read_bytes()
            if pid != os.getpid() and (
                is_named or (command.startswith(_TITLE) and _has_open(folder, f"{directory}/"))
            ):
                yield pid
        except OSError:
            continue  # it has ended, or is not ours


def _has_open(process: Path, prefix: str) -> bool:
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):  # it was just closed
            if str(descriptor.readlink()).startswith(prefix):
                return True
    return False


def main(directory: str) -> None:
    """Wait for the parent's end, then clear away."""
    while os.read(0, 4096):
        pass
    until = time.monotonic() + _SECONDS
    while (left := list(find_processes(directory))) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
