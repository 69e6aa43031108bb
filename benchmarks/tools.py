"""Measure deliberations with tools: three seats with three turns each on a small repository in
sandboxes, with tests after each change and a re-check.

A seat reads the file (turn 1), writes a wrong solution whose test fails (turn 2), and repairs it
(turn 3). Then every candidate is tested again on a clean checkout, and the winner twice more. The
critical path has three model calls and four runs of the tests. A plain loop does the same work in
comparison (`plain_loop.py`).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Operation, Probe, Run, run_alternating, run_concurrent
from benchmarks.plain_loop import PlainLoop, read_cpu
from benchmarks.server import Server
from benchmarks.stub import Stub
from benchmarks.workload import UnexpectedOutcome
from moothall.app.command_repository import register
from moothall.cli.demo import make_sample_repository
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.settings import load_settings

CALLS = 9
TURNS = 3
TEST_RUNS = 4
"""Consecutive runs: after turn 2, after turn 3, the re-check, and the further runs, which are
concurrent.
"""


@dataclass(frozen=True, slots=True)
class ToolsResult:
    """The runs of councils and of the plain loop. The single ones alternate.

    test_seconds: seconds of one run of the tests without a sandbox.
    """

    single: Run
    concurrent: Run
    plain_single: Run
    plain_concurrent: Run
    delay_ms: int
    test_seconds: float

    @property
    def critical_seconds(self) -> float:
        """The seconds of model calls and tests on the critical path."""
        return TURNS * self.delay_ms / 1000 + TEST_RUNS * self.test_seconds


async def make_repository(app: Server, path: Path) -> common_pb2.Repository:
    """Create the sample repository and register it with the server."""
    await make_sample_repository(path)
    reference = await register(load_settings(data_dir=app.data_dir), str(path), "HEAD")
    return common_pb2.Repository(id=reference.id)


def tools_operation(
    app: Server, repository: common_pb2.Repository, *, seats: int = 3, seconds: float = 300
) -> Operation:
    """Return a deliberation with tools.

    It raises `UnexpectedOutcome` unless it has a proven winner on a branch.
    """
    request = pb.DeliberateRequest(
        task_description="Add hello_world() function to src/utils.py",
        role="dev",
        num_agents=seats,
        protocol="vote",
        repository=repository,
    )

    async def deliberate() -> None:
        response = await app.deliberate(request, seconds=seconds)
        if not (response.winner_id and response.proven and response.branch):
            raise UnexpectedOutcome(
                f"no proven winner on a branch: {response.error_message} {response.results}"[:800]
            )

    return deliberate


async def measure(
    app: Server, stub: Stub, folder: Path, *, count: int, at_once: int, delay_ms: int = 50
) -> ToolsResult:
    """Measure `count` deliberations one after the other, and then `at_once` concurrent ones."""
    await stub.set(delay_ms=delay_ms)
    repository = await make_repository(app, folder / "sample")
    deliberate, probe = tools_operation(app, repository), _make_probe(app, stub)
    await deliberate()  # prepares the repository: environment, checkout, tests on the base
    await stub.set(reset=1)
    worktrees = folder / "worktrees"
    worktrees.mkdir()
    loop = PlainLoop(folder / "sample", worktrees, _find_python(app), delay_ms / 1000)
    await loop.operation()
    single, plain_single = await run_alternating(
        [(deliberate, probe), (loop.operation, read_cpu)], count
    )
    stats = await stub.stats()
    if stats["calls"] != CALLS * count:
        raise UnexpectedOutcome(
            f"{stats['calls']} model calls in {count} deliberations; expected {CALLS} in each"
        )
    concurrent = await run_concurrent(deliberate, at_once, 0, probe, generations=1)
    plain_concurrent = await run_concurrent(loop.operation, at_once, 0, read_cpu, generations=1)
    test_seconds = await _measure_tests(app, folder / "sample")
    return ToolsResult(single, concurrent, plain_single, plain_concurrent, delay_ms, test_seconds)


def _make_probe(app: Server, stub: Stub) -> Probe:
    return lambda: {**app.system.cpu_usage().cpu, "caller": time.process_time(), "stub": stub.cpu()}


def _find_python(app: Server) -> str:
    """Return the interpreter of the environment of the sample repository."""
    return str(next((app.data_dir / "environments").glob("*/env/bin/python"), Path(sys.executable)))


async def _measure_tests(app: Server, path: Path) -> float:
    """Return the median seconds of the tests in their environment, without a sandbox."""
    python = _find_python(app)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
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
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
