"""The log of a sandboxed process: it writes to a pipe, and this process writes the file."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

TAIL_BYTES = 2000
_MOST_BYTES = 4_000_000  # of output in the file; the tail is always the newest
_READ_BYTES = 65_536  # the capacity of a pipe
_PAUSE = 0.01  # seconds between reads: limits a flood of output to a few MB a second
_DRAINS = 16
_MARK = b"| "  # before each line of output, so that it cannot pass for a note


class SandboxLog:
    """Reads the stdout and stderr of a sandboxed process and writes them, up to a limit, to `path`,
    between our notes.

    `writing` is the descriptor for the process. Use this in one event loop, and call `start` after
    starting the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = path.open("ab", buffering=0) if path else None
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.writing, True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._tail = b""
        self._room = _MOST_BYTES
        self._line_start = True

    def start(self) -> None:
        """Close our copy of the writing end, and read until the process ends."""
        os.close(self.writing)
        self.writing = -1
        self._loop = asyncio.get_running_loop()
        self._listen()

    def tail(self) -> str:
        """Return the end of the output since the last note."""
        for _ in range(_DRAINS):
            if not self._read():
                break
        return self._tail.decode(errors="replace").strip()

    def note(self, text: str) -> None:
        """Add lines of our own to the log."""
        self.tail()
        self._tail = b""
        self._put((b"" if self._line_start else b"\n") + text.encode(errors="replace"))
        self._line_start = text.endswith("\n")

    def close(self) -> None:
        """Read the rest and close everything; `tail` still works."""
        self.tail()
        self._stop()
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
        if self._file:
            self._file.close()
            self._file = None

    def _listen(self) -> None:
        self._pause = None
        if self._loop and self._reading >= 0:
            self._loop.add_reader(self._reading, self._on_output)

    def _on_output(self) -> None:
        if self._loop and self._read():
            self._loop.remove_reader(self._reading)
            self._pause = self._loop.call_later(_PAUSE, self._listen)

    def _read(self) -> bool:
        """Read once; return whether there was output. Stop at its end."""
        if self._reading < 0:
            return False
        try:
            output = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return False
        if not output:
            self._stop()
            return False
        self._tail = (self._tail + output)[-TAIL_BYTES:]
        self._write(output)
        return True

    def _write(self, output: bytes) -> None:
        if not self._file or not self._room:
            return
        output = output[: self._room]
        self._room -= len(output)
        text = (_MARK if self._line_start else b"") + output.replace(b"\n", b"\n" + _MARK)
        self._line_start = output.endswith(b"\n")
        if self._line_start:
            text = text[: -len(_MARK)]
        if not self._room:
            text += b"\n| ... the log keeps %d bytes of output\n" % _MOST_BYTES
            self._line_start = True
        self._put(text)

    def _put(self, text: bytes) -> None:
        if self._file:
            with suppress(OSError):  # a full disk must not end the sandbox
                self._file.write(text)

    def _stop(self) -> None:
        if self._pause:
            self._pause.cancel()
            self._pause = None
        if self._reading >= 0:
            if self._loop:
                self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1
