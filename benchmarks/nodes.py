"""Measure workspaces on all nodes of a Ray cluster: a council of eight with tools, on one node and
on four.

A control group limits the sandboxes of each node to a fraction of a core, so that one machine can
simulate several. The server, the bus and the host are not limited, so the tests are the bottleneck.
It needs root and a kernel with the cpu controller.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import git
import psutil

from benchmarks.distributed_server import can_limit_cores, limit_cores, ray_nodes
from benchmarks.load import Operation
from benchmarks.server import DEFERRED_GRAPH, run_server
from benchmarks.stub import Stub, running_stub
from benchmarks.tools import tools_operation
from moothall.app.command_repository import register
from moothall.cli.demo import make_sample_repository
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.pb.moothall.v1 import common_pb2
from moothall.settings import load_settings

SEATS = 8
CORES = 0.15
"""Cores of each node. Four nodes and the other processes fit on a machine with two cores."""
COUNTS = (1, 4)
_HASH_ROUNDS = 800_000
_SLOW_TEST = f"""import hashlib


def test_slow():
    value = b""
    for _ in range({_HASH_ROUNDS}):
        value = hashlib.sha256(value).digest()
    assert value
"""
_DELAY_MS = 50
_UNLIMITED_CORES = 2.0


async def measure(*, folder: Path, rounds: int, announce: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of a council by the number of nodes. Both servers run in turn."""
    if not can_limit_cores():
        raise SystemExit(
            "the part nodes limits cores with control groups: it needs root and a writable "
            "/sys/fs/cgroup"
        )
    waits: dict[int, list[float]] = {count: [] for count in COUNTS}
    async with running_stub() as stub, AsyncExitStack() as stack:
        await stub.set(delay_ms=_DELAY_MS)
        operations = {}
        for count in COUNTS:
            operations[count] = await stack.enter_async_context(
                _cluster(folder / str(count), stub, count)
            )
        for number in range(1, rounds + 1):
            for count, deliberate in operations.items():
                start = time.perf_counter()
                await deliberate()
                waits[count].append(time.perf_counter() - start)
                announce(f"round {number} of {rounds}, {count} nodes: {waits[count][-1]:.1f} s")
    one_node, four_nodes = (statistics.median(waits[count]) for count in COUNTS)
    factor = one_node / four_nodes
    announce(
        f"a council of {SEATS}: {one_node:.1f} s on 1 node, {four_nodes:.1f} s on 4: {factor:.2f} x"
    )
    return {
        "seats": SEATS,
        "cores": CORES,
        "load": psutil.getloadavg()[1],
        "waits": {str(count): seconds for count, seconds in waits.items()},
        "factor": factor,
    }


@asynccontextmanager
async def _cluster(folder: Path, stub: Stub, count: int) -> AsyncIterator[Operation]:
    """Run a server on a cluster of `count` nodes, and yield a deliberation with a prepared base."""
    await asyncio.to_thread(folder.mkdir)
    async with (
        embedded_server(BusSettings(), folder / "bus") as bus_url,
        ray_nodes(count) as (address, cluster),
    ):
        settings = {
            **DEFERRED_GRAPH,
            "MOOTHALL_SLOW_TESTSPACE__KIND": "ray",
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__ALLOW_NO_TOKEN": "true",
            "MOOTHALL_BUS__URL": bus_url,
            # The nodes share the slots of this machine, so only the control groups limit them.
            "MOOTHALL_SANDBOX__CORES": "32",
            # The default limits are too short for such slow nodes.
            "MOOTHALL_SLOW_TESTSPACE__CHECK_FLOOR_SECONDS": "600",
            "MOOTHALL_SANDBOX__WALL_SECONDS": "600",
            "MOOTHALL_LIMITS__DELIBERATION_SECONDS": "1800",
        }
        async with (
            run_server(folder / "data", stub.base_url, settings) as app,
            AsyncExitStack() as stack,
        ):
            nodes = await _wait_for_actors(cluster, "SandboxNode", count)
            for number, process in enumerate(nodes):
                stack.enter_context(limit_cores(f"node-{number}", process.pid, CORES))
            (host,) = await _wait_for_actors(cluster, "HostActor", 1)
            for name, pid in (("host", host.pid), ("serve", app.system.root)):
                stack.enter_context(limit_cores(name, pid, _UNLIMITED_CORES))
            sample = folder / "sample"
            await make_sample_repository(sample)
            await asyncio.to_thread(_add_slow_test, sample)
            reference = await register(load_settings(data_dir=app.data_dir), str(sample), "HEAD")
            repository = common_pb2.Repository(id=reference.id)
            deliberate = tools_operation(app, repository, seats=SEATS, seconds=1800)
            await deliberate()  # prepares the repository and copies it to the nodes
            yield deliberate


async def _wait_for_actors(cluster: int, name: str, count: int) -> list[psutil.Process]:
    async with asyncio.timeout(120):
        while True:
            processes = psutil.Process(cluster).children(recursive=True)
            actors = [
                process for process in processes if f"ray::{name}" in " ".join(process.cmdline())
            ]
            if len(actors) == count:
                return actors
            await asyncio.sleep(0.5)


def _add_slow_test(sample: Path) -> None:
    """Commit a test that takes about a second."""
    (sample / "tests" / "test_slow.py").write_text(_SLOW_TEST, encoding="utf-8")
    with git.Repo(sample) as repository:
        repository.index.add(["tests/test_slow.py"])
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.commit("Add a slow test", author=author, committer=author)
