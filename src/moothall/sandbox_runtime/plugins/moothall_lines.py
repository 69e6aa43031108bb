"""The file for a reporter's lines of JSON. Supports Python 3.7 and later.

Tests may close all descriptors of their process, as daemons do, and open other files with the same
number. The descriptor is therefore checked before each line, and the file reopened if needed.
"""

from __future__ import annotations

import json
import os
import time

_HIGH = 200
"""The lowest descriptor number to use; tests rarely close or use such numbers."""


class Lines:
    """A new file in `folder` for the lines of `runner`; without a folder, nothing is written."""

    def __init__(self, folder: str, runner: str) -> None:
        self._path = (
            os.path.join(folder, f"{runner}-{os.getpid()}-{time.time_ns()}.jsonl")
            if folder
            else os.devnull
        )
        self._file = self._open(0 if not folder else os.O_CREAT | os.O_EXCL)
        self._expected_identity = self._identity()

    def write(self, **line: object) -> None:
        """Write a line."""
        if self._identity() != self._expected_identity:
            self._file = self._open(0)
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _identity(self) -> object:
        try:
            file_stat = os.fstat(self._file)
        except OSError:
            return None
        return file_stat.st_dev, file_stat.st_ino

    def _open(self, extra_flags: int) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | extra_flags, 0o644)
        try:
            import fcntl

            high_fd = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        except (ImportError, OSError):
            return file
        os.close(file)
        return high_fd
