"""The file that a reporter writes its lines of JSON to. Runs under Python 3.7 and on.

Tests may close every descriptor of their process (what makes daemons does), and open other files
under its number: it is looked at before each line, and opened again.
"""

from __future__ import annotations

import json
import os
import time

_HIGH = 200
"""Descriptors from here on are rarely closed or named by tests."""


class Lines:
    """A new file in `folder` for what `runner` tells; nothing is written where there is no
    folder.
    """

    def __init__(self, folder: str, runner: str) -> None:
        self._path = (
            os.path.join(folder, f"{runner}-{os.getpid()}-{time.time_ns()}.jsonl")
            if folder
            else os.devnull
        )
        self._file = self._open(0 if not folder else os.O_CREAT | os.O_EXCL)
        self._known = self._identity()

    def write(self, **line: object) -> None:
        """Write a line."""
        if self._identity() != self._known:
            self._file = self._open(0)
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _identity(self) -> object:
        try:
            found = os.fstat(self._file)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _open(self, more: int) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | more, 0o644)
        try:
            import fcntl

            high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        except (ImportError, OSError):
            return file
        os.close(file)
        return high
