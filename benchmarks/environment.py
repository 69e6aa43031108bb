"""The rivals' environment: made once from their own lock file, beside the product's and never in
it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import Run
from benchmarks.machine import System

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv-bench"
LOCK = ROOT / "requirements" / "bench.txt"
RESTATE = ROOT / "requirements" / "restate"
_RESTATE_SERVER = "@restatedev/restate-server"
_NPM_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


class Missing(Exception):
    """What a rival needs and this machine lacks."""


async def ensure() -> Path:
    """Return the environment's Python; make the environment where it isn't what the lock file
    says.
    """
    python, stamp = PLACE / "bin" / "python", PLACE / "locked"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text(encoding="ascii") == wanted):
        await _run(sys.executable, "-m", "venv", "--clear", str(PLACE))
        await _run(
            str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK)
        )
        stamp.write_text(wanted, encoding="ascii")
    return python


async def ensure_restate(place: Path = PLACE / "restate") -> tuple[Path, str]:
    """Return Restate's server and its version; install what its lock file says if it is not there.

    Raises `Missing` if it cannot be installed.
    """
    machine = platform.machine()
    system = f"{sys.platform}-{_NPM_MACHINES.get(machine, machine)}"
    lock, installed = RESTATE / "package-lock.json", place / "package-lock.json"
    server = place / "node_modules" / f"{_RESTATE_SERVER}-{system}" / "bin" / "restate-server"
    if not (server.exists() and installed.read_bytes() == lock.read_bytes()):
        if not shutil.which("npm"):
            raise Missing(
                "its server is an npm package and npm is missing; install Node.js with npm"
            )
        shutil.copytree(RESTATE, place, dirs_exist_ok=True)
        try:
            options = ("--ignore-scripts", "--no-audit", "--no-fund")
            await _run("npm", "ci", "--prefix", str(place), *options)
        except RuntimeError as error:
            raise Missing(f"its server cannot be installed: {error}") from error
        if not server.exists():
            raise Missing(f"its server is not published for {system}")
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    version = packages[f"node_modules/{_RESTATE_SERVER}"]["version"]
    return server, str(version)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} failed")


async def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions that are in the environment."""
    code = (
        f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in "
        f"{names!r}}}))"
    )
    process = await asyncio.create_subprocess_exec(
        str(python), "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return dict(json.loads(out))


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival's process, waiting for what to run."""

    name: str
    process: asyncio.subprocess.Process

    @property
    def system(self) -> System:
        """Its processes: one, and the servers that it started."""
        return System(self.process.pid)

    async def run(self, **requested: float) -> Run:
        """Tell it what to run, and return what it measured."""
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("asked for pipes")
        self.process.stdin.write(json.dumps(requested).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.name} ended before it had measured; what it said stands above"
            )
        document: dict[str, Any] = json.loads(line)
        return Run.read(document)


@asynccontextmanager
async def rival(python: Path, name: str, url: str, env: Mapping[str, str]) -> AsyncIterator[Rival]:
    """Start one; it ends with the context. `env` is added to the environment."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        "benchmarks.rivals",
        name,
        url,
        cwd=ROOT,
        env=os.environ | env,
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
