"""Workspaces on all nodes of a Ray cluster: a council of eight with tools, on one and on four.

The sandboxes of each node, with all that runs in them, share a slice of a core, so that one machine
stands in for several. The server, the bus and the host have no slice: tests are what is waited for.
Needs root and a kernel with the cpu controller.
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

from benchmarks.load import Act
from benchmarks.served import GRAPH_LATER, served
from benchmarks.spread import may_slice, ray_nodes, sliced
from benchmarks.stub import Stub, running_stub
from benchmarks.tools import tools_act
from moothall.app.command_repository import register
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.pb.moothall.v1 import common_pb2
from moothall.repositories.sample import make_sample_repository
from moothall.settings import load_settings

SEATS = 8
CORES = 0.15
"""Of each node. Four of them and the rest fit into one machine of two cores."""
COUNTS = (1, 4)
_ROUNDS = 800_000
_WORK = f"""import hashlib


def test_work():
    value = b""
    for _ in range({_ROUNDS}):
        value = hashlib.sha256(value).digest()
    assert value
"""
_DELAY_MS = 50
_UNLIMITED_CORES = 2.0


async def measure(*, folder: Path, rounds: int, announce: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of a council by the number of nodes; both servers take turns."""
    if not may_slice():
        raise SystemExit(
            "nodes: each gets a slice of a core by control groups, which needs root and a writable "
            "/sys/fs/cgroup"
        )
    waits: dict[int, list[float]] = {count: [] for count in COUNTS}
    async with running_stub() as stub, AsyncExitStack() as stack:
        await stub.set(delay_ms=_DELAY_MS)
        acts = {}
        for count in COUNTS:
            acts[count] = await stack.enter_async_context(
                _cluster(folder / str(count), stub, count)
            )
        for turn in range(1, rounds + 1):
            for count, act in acts.items():
                began = time.perf_counter()
                await act()
                waits[count].append(time.perf_counter() - began)
                announce(f"turn {turn} of {rounds}, {count} nodes: {waits[count][-1]:.1f} s")
    one, many = (statistics.median(waits[count]) for count in COUNTS)
    announce(f"a council of {SEATS}: {one:.1f} s on 1 node, {many:.1f} s on 4: {one / many:.2f} x")
    return {
        "seats": SEATS,
        "cores": CORES,
        "load": psutil.getloadavg()[1],
        "waits": {str(count): found for count, found in waits.items()},
        "factor": one / many,
    }


@asynccontextmanager
async def _cluster(folder: Path, stub: Stub, count: int) -> AsyncIterator[Act]:
    """Serve on a cluster of so many nodes, and yield one deliberation whose base is prepared."""
    await asyncio.to_thread(folder.mkdir)
    async with (
        embedded_server(BusSettings(), folder / "bus") as bus_url,
        ray_nodes(count) as (address, cluster),
    ):
        settings = {
            **GRAPH_LATER,
            "MOOTHALL_WORKSPACE__KIND": "ray",
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__ALLOW_NO_TOKEN": "true",
            "MOOTHALL_BUS__URL": bus_url,
            # The nodes share the slots of this machine, so the slices alone bound them.
            "MOOTHALL_SANDBOX__CORES": "32",
            # So slow a node needs longer than a limit allows.
            "MOOTHALL_WORKSPACE__CHECK_FLOOR_SECONDS": "600",
            "MOOTHALL_SANDBOX__WALL_SECONDS": "600",
            "MOOTHALL_LIMITS__DELIBERATION_SECONDS": "1800",
        }
        async with (
            served(folder / "data", stub.base_url, settings) as app,
            AsyncExitStack() as stack,
        ):
            nodes = await _actors(cluster, "SandboxNode", count)
            for number, process in enumerate(nodes):
                stack.enter_context(sliced(f"node-{number}", process.pid, CORES))
            (host,) = await _actors(cluster, "HostActor", 1)
            for name, pid in (("host", host.pid), ("serve", app.system.root)):
                stack.enter_context(sliced(name, pid, _UNLIMITED_CORES))
            sample = folder / "sample"
            await make_sample_repository(sample)
            await asyncio.to_thread(_add_work, sample)
            named = await register(load_settings(data_dir=app.data_dir), str(sample), "HEAD")
            act = tools_act(app, common_pb2.Repository(id=named.id), seats=SEATS, seconds=1800)
            await act()  # prepares the repository, and brings it to the nodes
            yield act


async def _actors(cluster: int, name: str, count: int) -> list[psutil.Process]:
    async with asyncio.timeout(120):
        while True:
            below = psutil.Process(cluster).children(recursive=True)
            actors = [one for one in below if f"ray::{name}" in " ".join(one.cmdline())]
            if len(actors) == count:
                return actors
            await asyncio.sleep(0.5)


def _add_work(sample: Path) -> None:
    """Add a test that takes a while."""
    (sample / "tests" / "test_work.py").write_text(_WORK, encoding="utf-8")
    with git.Repo(sample) as repository:
        repository.index.add(["tests/test_work.py"])
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.commit("A test that takes a while", author=author, committer=author)
