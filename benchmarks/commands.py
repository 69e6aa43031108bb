"""How long a person waits for a command that needs no Ray, and what an import costs: whole
processes, from exec to exit; and how long `deliberate` takes to say that its model server cannot be
used, or, with one that can, to its first event.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import git

from benchmarks.served import GRAPH_LATER, served
from benchmarks.stub import running_stub
from moothall.app.bus import open_log
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.telemetry.spans import write_of

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


NOBODY, REFUSED, FIRST = (
    "deliberate: nobody listens",
    "deliberate: the key is refused",
    "deliberate: its first event",
)
READY, LISTED = "serve: ready", "list: 10,000 tasks, while serving"
_TASKS, _AT_ONCE = 10_000, 64
_UNUSABLE = 2
_REFUSAL = b'{"error": {"message": "wrong key"}}'
_FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}


async def _start(
    argv: Sequence[str], folder: Path, more: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    return await asyncio.create_subprocess_exec(
        *argv,
        env={**kept, "MOOTHALL_DATA_DIR": str(folder), **more},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _seconds(argv: Sequence[str], folder: Path, wanted: int = 0, **more: str) -> float | None:
    """Wall seconds of one process; None where it did not exit with the code that is wanted."""
    began = time.perf_counter()
    process = await _start(argv, folder, more, asyncio.subprocess.DEVNULL)
    code = await process.wait()
    return time.perf_counter() - began if code == wanted else None


async def _to_first_event(argv: Sequence[str], folder: Path, **more: str) -> float | None:
    """Wall seconds until a council says its first line; the process is ended then. None where it
    says none.
    """
    began = time.perf_counter()
    process = await _start(argv, folder, more, asyncio.subprocess.PIPE)
    if process.stdout is None:
        raise AssertionError("asked for a pipe")
    try:
        while line := await process.stdout.readline():
            if line.startswith(b"council"):
                return time.perf_counter() - began
        return None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _median(
    argv: Sequence[str], folder: Path, times: int, wanted: int = 0, **more: str
) -> float | None:
    await _seconds(argv, folder, wanted, **more)  # the first one reads the files from the disk
    found = [
        seconds
        for _ in range(times)
        if (seconds := await _seconds(argv, folder, wanted, **more)) is not None
    ]
    return statistics.median(found) if len(found) == times else None


@asynccontextmanager
async def _refusing() -> AsyncIterator[str]:
    """A model server that refuses every key; yields its base URL."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            % len(_REFUSAL)
            + _REFUSAL
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def _repository(place: Path) -> str:
    place.mkdir(parents=True)
    for name, text in _FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    with git.Repo.init(place, initial_branch="main") as repository:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(_FILES))
        repository.index.commit("A sample", author=author, committer=author)
    return str(place)


async def _deliberations(folder: Path, times: int) -> dict[str, float | None]:
    """Seconds until `deliberate` says that its model server cannot be used; and until its first
    event, where it can.
    """
    repo = await asyncio.to_thread(_repository, folder / "sample")
    argv = (sys.executable, "-m", "moothall", "deliberate", "-v", "--repo", repo, "Mend add")
    data = folder / "deliberations"
    async with _refusing() as url:
        refused = await _median(argv, data, times, _UNUSABLE, MOOTHALL_LLM__BASE_URL=url)
    nobody = await _median(
        argv, data, times, _UNUSABLE, MOOTHALL_LLM__BASE_URL=url
    )  # the same port, which nobody has now
    async with running_stub() as stub:
        more = {"MOOTHALL_LLM__BASE_URL": stub.base_url}
        # The first one makes the environment and runs the untouched base.
        found = [await _to_first_event(argv, data, **more) for _ in range(times + 1)][1:]
    first = [seconds for seconds in found if seconds is not None]
    return {
        NOBODY: nobody,
        REFUSED: refused,
        FIRST: statistics.median(first) if len(first) == times else None,
    }


async def _write_tasks(data: Path) -> None:
    """Write the events of many tasks that have ended."""
    seats = ("agent-dev-001", "agent-dev-002", "agent-dev-003")
    deadline, places = datetime.now(UTC) + timedelta(days=1), asyncio.Semaphore(_AT_ONCE)
    async with open_log(load_settings(data_dir=data), lambda _: None) as bus:

        async def write_task(number: int) -> None:
            deliberation = Deliberation(
                TaskKey(f"task-{number:012x}"), f"Design queue {number} of the warehouse", "dev",
                "debate", seats, 1, deadline, 12,
            )  # fmt: skip
            results = tuple(
                Result(
                    rank, seat, "dev", 0.9, ("the tests passed",), passed_gates=True, proven=True,
                    diff="+ a line\n" * 200,
                )
                for rank, seat in enumerate(seats, 1)
            )  # fmt: skip
            outcome = Outcome(
                deliberation.task_id, DeliberationStatus.COMPLETED, role="dev", results=results,
                winner_id=seats[0], agent_count=len(seats),
            )  # fmt: skip
            requested = dump(deliberation) | {"request_digest": "", "num_agents": len(seats)}
            async with places:
                for kind, event_data in (
                    (EventType.DELIBERATION_REQUESTED, requested),
                    (EventType.DELIBERATION_STARTED, {"seats": list(seats)}),
                    (EventType.DELIBERATION_DECIDED, dump(outcome)),
                ):
                    await bus.publish(write_of(deliberation, kind, event_data, ordinal="listed"))

        async with asyncio.TaskGroup() as group:
            for number in range(_TASKS):
                group.create_task(write_task(number))


async def _serving(folder: Path, times: int) -> dict[str, float | None]:
    """Seconds until `serve` is ready, and until `list` has listed the last of many tasks."""
    data, starts = folder / "serving", []
    async with running_stub() as stub:
        for _ in range(times + 1):  # the first one reads the files from the disk
            began = time.perf_counter()
            async with served(data, stub.base_url):
                starts.append(time.perf_counter() - began)
        await _write_tasks(data)
        argv = (sys.executable, "-m", "moothall", "list")
        async with served(data, stub.base_url, GRAPH_LATER):
            listed = await _median(argv, data, times)
    return {READY: statistics.median(starts[1:]), LISTED: listed}


async def commands(folder: Path, times: int) -> dict[str, float]:
    """Median seconds by command line. Commands that this version doesn't have are left out."""
    found = {
        "python -c pass": await _median([sys.executable, "-c", "pass"], folder, times),
        "import moothall": await _median([sys.executable, "-c", "import moothall"], folder, times),
    }
    for command in COMMANDS:
        found["moothall " + " ".join(command)] = await _median(
            [sys.executable, "-m", "moothall", *command], folder, times
        )
    found |= await _deliberations(folder, times)
    found |= await _serving(folder, times)
    return {name: seconds for name, seconds in found.items() if seconds is not None}
