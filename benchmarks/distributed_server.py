"""A server distributed over nodes, each part limited to a fraction of a core, so that one machine
can simulate several.

A control group limits `serve`, the bus, and the host on each node of a Ray cluster. The hosts have
so little CPU that they are the bottleneck, so another host increases the rate. It needs root and a
kernel with the cpu controller.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.capacity import Demand, Fleet
from benchmarks.load import Run, run_concurrent
from benchmarks.machine import part_of
from benchmarks.server import DEFERRED_GRAPH, Server, run_server
from benchmarks.stub import Stub
from benchmarks.workload import text_operation
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server

_CLUSTER = Path(__file__).resolve().parent.parent / "tests" / "cluster" / "ray_cluster.py"
_PERIOD_US = 10_000  # short, so that a part is never suspended for long
_WEIGHT = 10_000  # the default is 100
_WAVES = 15
_GROUPS = Path("/sys/fs/cgroup")


def can_limit_cores() -> bool:
    """Return whether this user may limit the cores of processes."""
    return os.access(_root(), os.W_OK)


@contextmanager
def limit_cores(name: str, pid: int, cores: float) -> Iterator[None]:
    """Limit a process with all its threads to `cores` until the block ends, with priority over
    other processes.
    """
    group = _root() / f"moothall-{pid}-{name}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{round(cores * _PERIOD_US)} {_PERIOD_US}")
            (group / "cpu.weight").write_text(str(_WEIGHT))
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_US)))
            (group / "cpu.shares").write_text(str(10 * _WEIGHT))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):  # the process has ended
            (_root() / "cgroup.procs").write_text(str(pid))
        while True:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                break


def _root() -> Path:
    """Return the root of the cpu controller: v2 has one tree for all, v1 one for each."""
    return _GROUPS if (_GROUPS / "cgroup.controllers").exists() else _GROUPS / "cpu"


@dataclass(frozen=True, slots=True)
class DistributedServer:
    """A distributed server with the processes of each part."""

    app: Server
    parts: Mapping[str, Sequence[psutil.Process]]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds so far by part."""
        return {
            part: sum(
                times.user + times.system
                for times in (process.cpu_times() for process in processes)
            )
            for part, processes in self.parts.items()
        }


@asynccontextmanager
async def run_distributed_server(
    folder: Path, stub: Stub, fleet: Fleet
) -> AsyncIterator[DistributedServer]:
    """Run a server on as many nodes as the fleet has hosts, with the cores of each part limited."""
    other_buses = _find_buses()
    async with (
        embedded_server(BusSettings(), folder / "bus") as bus_url,
        ray_nodes(len(fleet.hosts)) as (address, cluster),
    ):
        settings = {
            **DEFERRED_GRAPH,
            "MOOTHALL_RAY__WAIT_SECONDS": "60",  # until all nodes have joined
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__ALLOW_NO_TOKEN": "true",
            "MOOTHALL_RAY__HOSTS": str(len(fleet.hosts)),
            "MOOTHALL_BUS__URL": bus_url,
        }
        async with run_server(folder / "data", stub.base_url, settings) as app:
            processes = psutil.Process(cluster).children(recursive=True)
            hosts = [process for process in processes if "ray::Host" in " ".join(process.cmdline())]
            bus = [process for process in _find_buses() if process not in other_buses]
            serve = psutil.Process(app.system.root)
            if len(hosts) != len(fleet.hosts) or len(bus) != 1:
                raise RuntimeError(
                    f"expected {len(fleet.hosts)} hosts and 1 bus server; found {len(hosts)} and "
                    f"{len(bus)}"
                )
            with ExitStack() as limits:
                for number, (process, cores) in enumerate(zip(hosts, fleet.hosts, strict=True)):
                    limits.enter_context(limit_cores(f"host-{number}", process.pid, cores))
                limits.enter_context(limit_cores("serve", serve.pid, fleet.serve))
                limits.enter_context(limit_cores("bus", bus[0].pid, fleet.bus))
                yield DistributedServer(app, {"serve": [serve], "host": hosts, "bus": bus})


def _find_buses() -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if part_of(process) == "bus"
    ]


@asynccontextmanager
async def ray_nodes(count: int) -> AsyncIterator[tuple[str, int]]:
    """Run a Ray cluster of `count` nodes; yield its address and the id of its root process."""
    folder = tempfile.mkdtemp(prefix="mhb-", dir="/tmp")  # a socket's path must be short
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_CLUSTER),
        folder,
        str(count),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("stdin or stdout is not a pipe")
    try:
        while not (line := await process.stdout.readline()).startswith(b"{"):
            if not line:
                raise RuntimeError("the Ray cluster did not start")
        yield json.loads(line)["address"], process.pid
    finally:
        process.stdin.close()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def measure_load(
    server: DistributedServer, stub: Stub, *, delay_ms: int, at_once: int, seconds: float
) -> Run:
    """Measure `at_once` callers. They end in waves, and the measurement begins and ends somewhere
    in a wave, so it lasts for many of them.
    """
    await stub.set(delay_ms=delay_ms, reset=1)
    return await run_concurrent(
        text_operation(server.app), at_once, seconds, server.cpu_seconds, generations=_WAVES
    )


def demand_of(run: Run, delay_ms: int) -> Demand:
    """Return the demand of one deliberation, as measured in a run."""
    parts = run.parts_ms()
    return Demand(
        serve_ms=parts["serve"], host_ms=parts["host"], bus_ms=parts["bus"], model_ms=delay_ms
    )
