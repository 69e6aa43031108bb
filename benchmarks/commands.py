"""Measure commands that need no Ray, and the import of the package, as whole processes from start
to exit. Measure `deliberate` until it reports an unusable model server, and until its first event.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import git

from benchmarks.server import DEFERRED_GRAPH, Server, run_server
from benchmarks.stub import running_stub
from moothall.app.bus import open_log
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.telemetry.tracing import write_of

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

UNREACHABLE, UNAUTHORIZED, FIRST_EVENT = (
    "deliberate: model server unreachable",
    "deliberate: API key rejected",
    "deliberate: first event",
)
SERVE_READY, LISTED = "serve: ready", "list: 10,000 tasks, while serving"
_TASKS, _CONCURRENCY = 10_000, 64
_IDLE_CPU, _IDLE_SECONDS = 0.1, 120.0
"""CPU seconds of an idle server in a second, and how long to wait for it."""
_UNUSABLE_CODE = 2
"""The exit code if the model server is unusable."""
_UNAUTHORIZED_BODY = b'{"error": {"message": "wrong key"}}'
_FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}


async def _start_process(
    argv: Sequence[str], folder: Path, extra_env: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    return await asyncio.create_subprocess_exec(
        *argv,
        env={
            **env,
            "MOOTHALL_DATA_DIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "",  # bytecode is cached, as for users
            **extra_env,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _run_seconds(
    argv: Sequence[str], folder: Path, exit_code: int = 0, **extra_env: str
) -> float | None:
    """Return the wall seconds of one process; None if it exits with another code."""
    start = time.perf_counter()
    process = await _start_process(argv, folder, extra_env, asyncio.subprocess.DEVNULL)
    code = await process.wait()
    return time.perf_counter() - start if code == exit_code else None


async def _first_event_seconds(argv: Sequence[str], folder: Path, **extra_env: str) -> float | None:
    """Return the wall seconds until the first line of a council, and terminate the process.

    Return None if there is no such line.
    """
    start = time.perf_counter()
    process = await _start_process(argv, folder, extra_env, asyncio.subprocess.PIPE)
    if process.stdout is None:
        raise AssertionError("stdout is not a pipe")
    try:
        while line := await process.stdout.readline():
            if line.startswith(b"council"):
                return time.perf_counter() - start
        return None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _median(
    argv: Sequence[str], folder: Path, times: int, exit_code: int = 0, **extra_env: str
) -> float | None:
    await _run_seconds(argv, folder, exit_code, **extra_env)  # reads the files from the disk
    durations = [
        seconds
        for _ in range(times)
        if (seconds := await _run_seconds(argv, folder, exit_code, **extra_env)) is not None
    ]
    return statistics.median(durations) if len(durations) == times else None


@asynccontextmanager
async def _unauthorized_server() -> AsyncIterator[str]:
    """Run a model server that rejects every key, and yield its base URL."""

    async def reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            % len(_UNAUTHORIZED_BODY)
            + _UNAUTHORIZED_BODY
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reject, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def _make_repository(path: Path) -> str:
    path.mkdir(parents=True)
    for name, text in _FILES.items():
        (path / name).write_text(text, encoding="utf-8")
    with git.Repo.init(path, initial_branch="main") as repository:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(_FILES))
        repository.index.commit("A sample", author=author, committer=author)
    return str(path)


async def _measure_deliberate(folder: Path, times: int) -> dict[str, float | None]:
    """Return the seconds of `deliberate` with an unusable model server, and until its first event
    with a usable one.
    """
    repo = await asyncio.to_thread(_make_repository, folder / "sample")
    argv = (sys.executable, "-m", "moothall", "deliberate", "-v", "--repo", repo, "Mend add")
    data = folder / "deliberations"
    async with _unauthorized_server() as url:
        unauthorized = await _median(argv, data, times, _UNUSABLE_CODE, MOOTHALL_LLM__BASE_URL=url)
    # The port is closed now.
    unreachable = await _median(argv, data, times, _UNUSABLE_CODE, MOOTHALL_LLM__BASE_URL=url)
    async with running_stub() as stub:
        env = {"MOOTHALL_LLM__BASE_URL": stub.base_url}
        # The first run creates the environment and runs the checks on the base.
        runs = [await _first_event_seconds(argv, data, **env) for _ in range(times + 1)][1:]
    durations = [seconds for seconds in runs if seconds is not None]
    return {
        UNREACHABLE: unreachable,
        UNAUTHORIZED: unauthorized,
        FIRST_EVENT: statistics.median(durations) if len(durations) == times else None,
    }


async def _write_tasks(data: Path) -> None:
    """Write the events of many tasks that have ended."""
    seats = ("agent-dev-001", "agent-dev-002", "agent-dev-003")
    deadline, slots = datetime.now(UTC) + timedelta(days=1), asyncio.Semaphore(_CONCURRENCY)
    async with open_log(load_settings(data_dir=data), lambda _: None) as bus:

        async def write_task(number: int) -> None:
            deliberation = Deliberation(
                TaskKey(f"task-{number:012x}"),
                f"Design queue {number} of the warehouse",
                "dev",
                "debate",
                seats,
                1,
                deadline,
                12,
            )
            results = tuple(
                Result(
                    rank,
                    seat,
                    "dev",
                    0.9,
                    ("the tests passed",),
                    passed_gates=True,
                    proven=True,
                    diff="+ a line\n" * 200,
                )
                for rank, seat in enumerate(seats, 1)
            )
            outcome = Outcome(
                deliberation.task_id,
                DeliberationStatus.COMPLETED,
                role="dev",
                results=results,
                winner_id=seats[0],
                agent_count=len(seats),
            )
            request_data = dump(deliberation) | {"request_digest": "", "num_agents": len(seats)}
            async with slots:
                for kind, event_data in (
                    (EventType.DELIBERATION_REQUESTED, request_data),
                    (EventType.DELIBERATION_STARTED, {"seats": list(seats)}),
                    (EventType.DELIBERATION_DECIDED, dump(outcome)),
                ):
                    await bus.publish(write_of(deliberation, kind, event_data, ordinal="listed"))

        async with asyncio.TaskGroup() as group:
            for number in range(_TASKS):
                group.create_task(write_task(number))


async def _measure_server(folder: Path, times: int) -> dict[str, float | None]:
    """Return the seconds until `serve` is ready, and those of `list` with many tasks."""
    data, starts = folder / "serving", []
    async with running_stub() as stub:
        for _ in range(times + 1):  # the first one reads the files from the disk
            started = time.perf_counter()
            async with run_server(data, stub.base_url):
                starts.append(time.perf_counter() - started)
        await _write_tasks(data)
        argv = (sys.executable, "-m", "moothall", "list")
        async with run_server(data, stub.base_url, DEFERRED_GRAPH) as server:
            await _wait_until_idle(server)
            list_seconds = await _median(argv, data, times)
    return {SERVE_READY: statistics.median(starts[1:]), LISTED: list_seconds}


async def _wait_until_idle(server: Server) -> None:
    """Wait until the server has read the log, which takes some seconds after a start."""
    used_seconds = -math.inf
    async with asyncio.timeout(_IDLE_SECONDS):
        while (now := sum(server.system.cpu_usage().cpu.values())) - used_seconds > _IDLE_CPU:
            used_seconds = now
            await asyncio.sleep(1)


async def measure(folder: Path, times: int) -> dict[str, float]:
    """Return the median seconds by command line, without commands that this version lacks."""
    medians = {
        "python -c pass": await _median([sys.executable, "-c", "pass"], folder, times),
        "import moothall": await _median([sys.executable, "-c", "import moothall"], folder, times),
    }
    for command in COMMANDS:
        medians["moothall " + " ".join(command)] = await _median(
            [sys.executable, "-m", "moothall", *command], folder, times
        )
    medians |= await _measure_deliberate(folder, times)
    medians |= await _measure_server(folder, times)
    return {name: seconds for name, seconds in medians.items() if seconds is not None}
