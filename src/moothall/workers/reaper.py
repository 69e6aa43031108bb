"""Cleans up a private Ray cluster whose parent was killed: `python -I -S reaper.py DIRECTORY`.

Only the parent holds the other end of stdin, so stdin closes when the parent ends in any way. Then
the reaper kills all processes that name the directory, because Ray's servers and agents would run
for another minute, and removes the directory. It imports only the standard library.
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
    """Yield the ids of other processes whose command line or environment names the directory.

    Ray's own processes overwrite both with a title, so they are also found by an open file in the
    directory. An open file does not identify other processes: the owner has files open there too,
    and so may a person who reads a log.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            command = (folder / "cmdline").read_bytes()
            is_named = os.fsencode(directory) in command + (folder / "environ").read_bytes()
            if pid != os.getpid() and (
                is_named or (command.startswith(_TITLE) and _has_open_file(folder, f"{directory}/"))
            ):
                yield pid
        except OSError:
            continue  # it has ended, or belongs to another user


def _has_open_file(process: Path, prefix: str) -> bool:
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):  # it was just closed
            if str(descriptor.readlink()).startswith(prefix):
                return True
    return False


def main(directory: str) -> None:
    """Wait until the parent has ended, then kill the processes and remove the directory."""
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + _SECONDS
    while (pids := list(find_processes(directory))) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
