"""The environment of the rivals: created once from its own lock file, separate from Moothall's."""

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
FOLDER = ROOT / ".venv-bench"
LOCK = ROOT / "requirements" / "bench.txt"
RESTATE = ROOT / "requirements" / "restate"
_RESTATE_SERVER = "@restatedev/restate-server"
_NPM_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


class MissingRequirement(Exception):
    """A requirement of a rival is missing on this machine."""


async def ensure_environment() -> Path:
    """Return the Python of the environment; create it if it does not match the lock file."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "locked"
    lock_hash = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text(encoding="ascii") == lock_hash):
        await _run_command(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        await _run_command(
            str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK)
        )
        stamp.write_text(lock_hash, encoding="ascii")
    return python


async def ensure_restate(folder: Path = FOLDER / "restate") -> tuple[Path, str]:
    """Return the path and version of Restate's server; install it if it does not match its lock.

    Raises `MissingRequirement` if it cannot be installed.
    """
    machine = platform.machine()
    system = f"{sys.platform}-{_NPM_MACHINES.get(machine, machine)}"
    lock, installed = RESTATE / "package-lock.json", folder / "package-lock.json"
    server = folder / "node_modules" / f"{_RESTATE_SERVER}-{system}" / "bin" / "restate-server"
    if not (server.exists() and installed.read_bytes() == lock.read_bytes()):
        if not shutil.which("npm"):
            raise MissingRequirement(
                "its server is an npm package and npm is missing; install Node.js with npm"
            )
        shutil.copytree(RESTATE, folder, dirs_exist_ok=True)
        try:
            options = ("--ignore-scripts", "--no-audit", "--no-fund")
            await _run_command("npm", "ci", "--prefix", str(folder), *options)
        except RuntimeError as error:
            raise MissingRequirement(f"its server cannot be installed: {error}") from error
        if not server.exists():
            raise MissingRequirement(f"its server is not published for {system}")
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    version = packages[f"node_modules/{_RESTATE_SERVER}"]["version"]
    return server, str(version)


async def _run_command(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    if await process.wait():
        raise RuntimeError(f"{' '.join(command)} failed")


async def installed_versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages in the environment."""
    code = (
        f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in "
        f"{names!r}}}))"
    )
    process = await asyncio.create_subprocess_exec(
        str(python), "-c", code, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return dict(json.loads(output))


@dataclass(frozen=True, slots=True)
class Rival:
    """The process of a rival, which runs cases on request."""

    name: str
    process: asyncio.subprocess.Process

    @property
    def system(self) -> System:
        """The process, and the servers that it started."""
        return System(self.process.pid)

    async def run(self, **requested: float) -> Run:
        """Send a request to the process, and return the run that it measured."""
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("stdin or stdout is not a pipe")
        self.process.stdin.write(json.dumps(requested).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.name} ended before it returned a result; its error message is above"
            )
        document: dict[str, Any] = json.loads(line)
        return Run.read(document)


@asynccontextmanager
async def start_rival(
    python: Path, name: str, url: str, env: Mapping[str, str]
) -> AsyncIterator[Rival]:
    """Run a rival for the duration of the context. `env` is added to the environment."""
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
        raise AssertionError("stdin or stdout is not a pipe")
    try:
        if (await process.stdout.readline()).strip() != b"ready":
            raise RuntimeError(f"{name} did not start")
        yield Rival(name, process)
    finally:
        process.stdin.close()
        await process.wait()
