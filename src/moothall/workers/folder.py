"""A short directory for a Ray of our own, which goes when its owner goes, however that ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from moothall.processes import start_process
from moothall.workers import reaper

_PREFIX = "mh-"  # short: a folder of many letters for temporary files leaves little of the 107


@asynccontextmanager
async def ray_folder() -> AsyncIterator[Path]:
    """Make it; Ray's sockets have a path limit of 107 bytes. A child waits beside it to clear away
    after a kill -9.

    Ray lets everybody write in its directory, where another user's link would have us write
    elsewhere: it lies in one of ours.
    """
    await asyncio.to_thread(sweep, Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    watcher = await start_process(
        sys.executable,
        "-I",
        "-S",
        str(reaper.__file__),
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for its parent
        cwd="/",
    )
    try:
        inner = directory / "r"
        inner.mkdir()
        yield inner
    finally:
        if watcher.stdin is not None:
            watcher.stdin.close()
        await watcher.wait()
        await asyncio.to_thread(shutil.rmtree, directory, True)


def sweep(temporary: Path) -> int:
    """Remove directories whose owner is gone, with the processes that name them; return how many
    there were.
    """
    swept = 0
    for folder in temporary.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if (
            owner.isdigit()
            and not psutil.pid_exists(int(owner))
            and folder.lstat().st_uid == os.geteuid()
        ):
            _end(folder)
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def _end(folder: Path) -> None:
    """Kill the processes that name a directory, whose watcher was killed too, and those below them:
    Ray's own write a title over what they name.
    """
    found: set[psutil.Process] = set()
    for pid in reaper.find_processes(str(folder)):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    for process in found:
        with suppress(psutil.Error):
            process.kill()  # psutil looks whether the pid is still the same process's
