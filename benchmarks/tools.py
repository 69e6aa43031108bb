"""With tools: three seats, three turns each, on a small repository in sandboxes, with tests after
each change and a re-check.

Each seat looks (turn 1), writes a wrong answer and sees its test fail (turn 2), mends it and sees
it pass (turn 3); every candidate is then tested again on a clean checkout, and the winner twice
more. One behind the other lie three model calls and four runs of the tests. A plain loop does the
same work beside it (`plain_loop.py`).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Act, Probe, Run, side_by_side, taking_turns
from benchmarks.plain_loop import PlainLoop, used
from benchmarks.served import Served
from benchmarks.stub import Stub
from benchmarks.workload import Wrong
from moothall.app.command_repository import register
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.repositories.sample import make_sample_repository
from moothall.settings import load_settings

CALLS = 9
TURNS = 3
TEST_RUNS = 4
"""Behind each other: after turn 2, after turn 3, the re-check, and the further runs, which are side
by side."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What came of it. `bare_tests`: seconds that one run of the repository's tests takes
    outside. `plain`: the plain loop, in turn with `alone`, and `plain_together` after `together`.
    """

    alone: Run
    together: Run
    plain: Run
    plain_together: Run
    delay_ms: int
    bare_tests: float

    @property
    def critical(self) -> float:
        """Seconds of the model's and the tests' own time on the longest path."""
        return TURNS * self.delay_ms / 1000 + TEST_RUNS * self.bare_tests


async def repository(app: Served, path: Path) -> common_pb2.Repository:
    """Make the sample and register it with the server."""
    await make_sample_repository(path)
    named = await register(load_settings(data_dir=app.data_dir), str(path), "HEAD")
    return common_pb2.Repository(id=named.id)


def tools_act(
    app: Served, named: common_pb2.Repository, *, seats: int = 3, seconds: float = 300
) -> Act:
    """One deliberation with tools; raises `Wrong` unless it has a proven winner on a branch."""
    request = pb.DeliberateRequest(
        task_description="Add hello_world() function to src/utils.py",
        role="dev",
        num_agents=seats,
        protocol="vote",
        repository=named,
    )

    async def act() -> None:
        response = await app.deliberate(request, seconds=seconds)
        if not (response.winner_id and response.proven and response.branch):
            raise Wrong(
                f"no proven winner on a branch: {response.error_message} {response.results}"[:800]
            )

    return act


async def work(
    app: Served, stub: Stub, folder: Path, *, count: int, at_once: int, delay_ms: int = 50
) -> Worked:
    """Run it one at a time, then `at_once` side by side."""
    await stub.set(delay_ms=delay_ms)
    act, probe = tools_act(app, await repository(app, folder / "sample")), _probe(app, stub)
    await act()  # prepares the repository: an environment, a checkout, the tests on the base
    await stub.set(reset=1)
    worktrees = folder / "worktrees"
    worktrees.mkdir()
    loop = PlainLoop(folder / "sample", worktrees, _python(app), delay_ms / 1000)
    await loop.act()
    alone, plain = await taking_turns([(act, probe), (loop.act, used)], count)
    received = await stub.stats()
    if received["calls"] != CALLS * count:
        raise Wrong(f"{received['calls']} model calls in {count} deliberations, not {CALLS} each")
    together = await side_by_side(act, at_once, 0, probe, generations=1)
    plain_together = await side_by_side(loop.act, at_once, 0, used, generations=1)
    bare_tests = await _bare_tests(app, folder / "sample")
    return Worked(alone, together, plain, plain_together, delay_ms, bare_tests)


def _probe(app: Served, stub: Stub) -> Probe:
    return lambda: {**app.system.used().cpu, "caller": time.process_time(), "stub": stub.cpu()}


def _python(app: Served) -> str:
    """Return the interpreter of the environment that was prepared for the sample."""
    return str(next((app.data_dir / "environments").glob("*/env/bin/python"), Path(sys.executable)))


async def _bare_tests(app: Served, path: Path) -> float:
    """Median seconds of the same tests in the environment that was prepared for them, without
    sandbox and without us.
    """
    python = _python(app)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            cwd=path,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
