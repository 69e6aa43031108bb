"""A real PostgreSQL and a real Redis for tests: on loopback, empty at first, removed with all their
files at the end.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

_START_SECONDS, _STOP_SECONDS = 60.0, 20.0
_AS = "postgres"  # PostgreSQL does not run as root


class Missing(Exception):
    """A server is unavailable here; the message names what is missing and how to get it."""


def free_port() -> int:
    """Return a port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the context ends; its process group ends with it."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            user=user,
            env=env,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def wait_for(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    seconds: float = _START_SECONDS,
) -> None:
    """Wait for `ready`. Raises `RuntimeError` with the end of the log if the server ended or did
    not become ready.
    """
    until = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(
                f"{process.args!r} did not start: {log.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.05)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _postgres_binaries() -> Path:
    executable = shutil.which("postgres")
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda folder: int(folder.parent.name),
        reverse=True,
    )
    if executable or folders:
        return Path(executable).resolve().parent if executable else folders[0]
    raise Missing("no PostgreSQL: `apt-get install postgresql` brings it")


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the superuser's URL of a private PostgreSQL. Raises `Missing`."""
    binaries = _postgres_binaries()
    user = None
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam(_AS).pw_name
        except KeyError as error:
            raise Missing(
                f"no PostgreSQL: it refuses to run as root, and there is no user {_AS}"
            ) from error
    port, password = free_port(), secrets.token_urlsafe(12)
    with tempfile.TemporaryDirectory(prefix="moothall-postgres-") as name:
        home = Path(name)
        (home / "password").write_text(password, encoding="ascii")
        if user:
            for path in (home, home / "password"):
                shutil.chown(path, user)
        completed = subprocess.run(
            [
                binaries / "initdb",
                "-D",
                home / "data",
                "-U",
                "boss",
                "--pwfile",
                home / "password",
                "-A",
                "scram-sha-256",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            check=False,
            user=user,
            cwd="/",
        )
        if completed.returncode:
            raise RuntimeError(f"initdb: {completed.stderr[-2000:]}")
        command = [
            str(binaries / "postgres"),
            "-D",
            f"{home}/data",
            "-p",
            str(port),
            "-k",
            name,
            "-h",
            "127.0.0.1",
            "-F",
        ]
        with running(command, home / "out.log", user=user) as process:
            probe = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_for(
                lambda: subprocess.run(probe, check=False).returncode == 0,
                process,
                home / "out.log",
            )
            yield f"postgresql://boss:{password}@127.0.0.1:{port}/postgres"


@contextmanager
def redis() -> Iterator[str]:
    """Yield the URL of a private Redis. Raises `Missing`."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise Missing("no Redis: `apt-get install redis-server` brings it")
    port, password = free_port(), secrets.token_urlsafe(12)
    with tempfile.TemporaryDirectory(prefix="moothall-redis-") as name:
        home = Path(name)
        settings = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": name,
            "requirepass": password,
            "save": '""',
            "appendonly": "no",
        }
        lines = "\n".join(f"{key} {value}" for key, value in settings.items())
        (home / "redis.conf").write_text(lines, encoding="ascii")
        with running([binary, str(home / "redis.conf")], home / "out.log") as process:
            wait_for(lambda: _accepts(port), process, home / "out.log")
            yield f"redis://:{password}@127.0.0.1:{port}/0"


@asynccontextmanager
async def relay_port(
    to: tuple[str, int], host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Relay a server of this machine at another address until the block ends; yield the port
    there.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    calls: set[asyncio.Task[Any]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            calls.add(task)
        with closing(writer):
            back, out = await asyncio.open_connection(*to)
            with closing(out):
                await asyncio.gather(pump(reader, out), pump(back, writer))

    server = await asyncio.start_server(handle_connection, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
