"""The rivals' environment: made once from their own lock file, beside the product's and never in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import Run
from benchmarks.machine import System

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv-bench"
LOCK = ROOT / "requirements" / "bench.txt"


async def ensure() -> Path:
    """Return the environment's Python; make the environment where it isn't what the lock file says."""
    python, stamp = PLACE / "bin" / "python", PLACE / "locked"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text(encoding="ascii") == wanted):
        await _run(sys.executable, "-m", "venv", "--clear", str(PLACE))
        await _run(str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK))
        stamp.write_text(wanted, encoding="ascii")
    return python


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} failed")


async def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions that are in the environment."""
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    process = await asyncio.create_subprocess_exec(str(python), "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return dict(json.loads(out))


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival's process, waiting for what to run."""

    name: str
    process: asyncio.subprocess.Process

    @property
    def system(self) -> System:
        """Its processes: one."""
        return System(self.process.pid)

    async def run(self, **asked: float) -> Run:
        """Tell it what to run, and return what it measured."""
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("asked for pipes")
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended before it had measured; what it said stands above")
        document: dict[str, Any] = json.loads(line)
        return Run.read(document)


@asynccontextmanager
async def rival(python: Path, name: str, url: str) -> AsyncIterator[Rival]:
    """Start one; it ends with the context."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        "benchmarks.rivals",
        name,
        url,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("asked for pipes")
    try:
        if (await process.stdout.readline()).strip() != b"ready":
            raise RuntimeError(f"{name} did not start")
        yield Rival(name, process)
    finally:
        process.stdin.close()
        await process.wait()
