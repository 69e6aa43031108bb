"""Open descriptors that a child must not inherit, and a search for processes that have them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

COUNT = 20


@dataclass(frozen=True, slots=True)
class Leak:
    """A file that this process has open `COUNT` times, each inheritable."""

    path: Path
    descriptors: tuple[int, ...]

    def holders(self, pid: int | None = None) -> list[str]:
        """Return the command lines of a process's descendants that have the file open."""
        identity = _identity(self.path)
        command_lines = []
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(OSError, psutil.Error):  # it has ended
                opened = [_identity(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
                if identity in opened:
                    command_lines.append(" ".join(process.cmdline())[:200])
        return command_lines


def _identity(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_dev, stat.st_ino
    return -1, -1


@contextmanager
def leak(folder: Path) -> Iterator[Leak]:
    """Open a file below `folder`, as the shell that started this process could have done."""
    path = folder / "leaked-secret"
    path.write_text("TOP-SECRET\n", encoding="utf-8")
    descriptors = []
    try:
        for _ in range(COUNT):
            descriptors.append(os.open(path, os.O_RDWR | os.O_APPEND))
            os.set_inheritable(descriptors[-1], True)
        yield Leak(path, tuple(descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def open_again(leaked: Leak) -> None:
    """Make the descriptors inheritable again, so that every start of a child is tested with
    them.
    """
    for descriptor in leaked.descriptors:
        os.set_inheritable(descriptor, True)


def under_uvloop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in the product's event loop, which ignores `close_fds`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
