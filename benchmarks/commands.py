"""How long a person waits for a command that needs no Ray, and what an import costs: whole processes, from exec to exit."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("--help",),
    ("config",),
    ("repo", "list"),
    ("log", "tail"),
    ("log", "dead"),
    ("log", "asyncapi"),
    ("audit", "verify"),
    ("graph", "--help"),
    ("serve", "--help"),
    ("deliberate", "--help"),
)


async def _seconds(argv: Sequence[str], folder: Path) -> float | None:
    """Wall seconds of one process; None where it did not exit with 0."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=kept | {"MOOTHALL_DATA_DIR": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    code = await process.wait()
    return time.perf_counter() - began if code == 0 else None


async def _median(argv: Sequence[str], folder: Path, times: int) -> float | None:
    await _seconds(argv, folder)  # the first one reads the files from the disk
    found = [seconds for _ in range(times) if (seconds := await _seconds(argv, folder)) is not None]
    return statistics.median(found) if len(found) == times else None


async def commands(folder: Path, times: int) -> dict[str, float]:
    """Median seconds by command line. Commands that this version doesn't have are left out."""
    found = {
        "python -c pass": await _median([sys.executable, "-c", "pass"], folder, times),
        "import moothall": await _median([sys.executable, "-c", "import moothall"], folder, times),
    }
    for command in COMMANDS:
        found["moothall " + " ".join(command)] = await _median([sys.executable, "-m", "moothall", *command], folder, times)
    return {name: seconds for name, seconds in found.items() if seconds is not None}
