"""Noticing that the embedded server's disk was full. The server gives a stream up at the first write that fails, and takes
it up again only when it is started anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOM = 16 * 1024 * 1024  # bytes that must be free: two of the largest messages
_FAILED = (b"critical write error", b"no space left on device", b"out of space", b"disk quota exceeded")
_READ = 1024 * 1024


@dataclass(slots=True)
class Disk:
    """The disk below `directory`, and how far the server's log there was read. Methods block for a moment."""

    directory: Path
    _read: int = 0

    def has_room(self) -> bool:
        """Whether a message of any size can be written."""
        return self._free() >= ROOM

    def has_failed(self) -> bool:
        """Whether there is no room now, or a write has failed since this was last asked."""
        return self._log_says_so() or self._free() < ROOM // 2

    def _free(self) -> int:
        try:
            found = os.statvfs(self.directory)
        except OSError:  # it is gone: that there is no room is not what ails it
            return ROOM
        return found.f_bavail * found.f_frsize

    def _log_says_so(self) -> bool:
        path = self.directory / "nats-server.log"
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(self._read if self._read <= size else 0)  # shorter: the server has begun a new one
                said = file.read(_READ).lower()
                self._read = file.tell()
        except FileNotFoundError:
            return False
        return any(words in said for words in _FAILED)
