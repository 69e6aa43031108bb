"""The server spread over nodes, each part with a slice of a core of its own, so that one machine
stands in for several.

Serve, the bus and a host on each node of a Ray cluster may use what their control group says, and
no more: hosts that are small enough are what a server waits for, and one more of them is seen in
its
rate. Needs root and a kernel with the cpu controller.
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
from benchmarks.load import Run, side_by_side
from benchmarks.machine import part_of
from benchmarks.served import GRAPH_LATER, Served, served
from benchmarks.stub import Stub
from benchmarks.workload import text_act
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server

_CLUSTER = Path(__file__).resolve().parent.parent / "tests" / "cluster" / "ray_cluster.py"
_PERIOD_US = 10_000  # short, so that a part is never away for long
_WEIGHT = 10_000  # 100 is that of others
_WAVES = 15
_GROUPS = Path("/sys/fs/cgroup")


def may_slice() -> bool:
    """Whether this user may give processes slices of a core."""
    return os.access(_root(), os.W_OK)


@contextmanager
def sliced(name: str, pid: int, cores: float) -> Iterator[None]:
    """Keep a process, with all its threads, at `cores` of a core until the block ends. It gets
    them before others that run on this machine.
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
        with suppress(OSError):  # it has ended
            (_root() / "cgroup.procs").write_text(str(pid))
        while True:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                break


def _root() -> Path:
    """Of version 2 all controllers lie in one tree, of version 1 each has its own."""
    return _GROUPS if (_GROUPS / "cgroup.controllers").exists() else _GROUPS / "cpu"


@dataclass(frozen=True, slots=True)
class Spread:
    """A server over nodes: the process of each part."""

    app: Served
    parts: Mapping[str, Sequence[psutil.Process]]

    def used(self) -> dict[str, float]:
        """CPU seconds by part so far."""
        return {
            part: sum(
                times.user + times.system
                for times in (process.cpu_times() for process in processes)
            )
            for part, processes in self.parts.items()
        }


@asynccontextmanager
async def spread(folder: Path, stub: Stub, fleet: Fleet) -> AsyncIterator[Spread]:
    """Serve over as many nodes as the fleet has hosts, each part in its slice."""
    others = _buses()
    async with (
        embedded_server(BusSettings(), folder / "bus") as bus_url,
        ray_nodes(len(fleet.hosts)) as (address, cluster),
    ):
        settings = {
            **GRAPH_LATER,
            "MOOTHALL_RAY__WAIT_SECONDS": "60",  # a host on each node, though they come one by one
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__ALLOW_NO_TOKEN": "true",
            "MOOTHALL_RAY__HOSTS": str(len(fleet.hosts)),
            "MOOTHALL_BUS__URL": bus_url,
        }
        async with served(folder / "data", stub.base_url, settings) as app:
            below = psutil.Process(cluster).children(recursive=True)
            hosts = [process for process in below if "ray::Host" in " ".join(process.cmdline())]
            bus = [process for process in _buses() if process not in others]
            serve = psutil.Process(app.system.root)
            if len(hosts) != len(fleet.hosts) or len(bus) != 1:
                raise RuntimeError(
                    f"{len(fleet.hosts)} hosts and a bus were asked for; found {len(hosts)} and "
                    f"{len(bus)}"
                )
            with ExitStack() as slices:
                for number, (process, cores) in enumerate(zip(hosts, fleet.hosts, strict=True)):
                    slices.enter_context(sliced(f"host-{number}", process.pid, cores))
                slices.enter_context(sliced("serve", serve.pid, fleet.serve))
                slices.enter_context(sliced("bus", bus[0].pid, fleet.bus))
                yield Spread(app, {"serve": [serve], "host": hosts, "bus": bus})


def _buses() -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if part_of(process) == "bus"
    ]


@asynccontextmanager
async def ray_nodes(count: int) -> AsyncIterator[tuple[str, int]]:
    """Yield the address of a Ray cluster of so many nodes, and the process above all of it."""
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
        raise AssertionError("asked for pipes")
    try:
        while not (line := await process.stdout.readline()).startswith(b"{"):
            if not line:
                raise RuntimeError("the Ray cluster did not start")
        yield json.loads(line)["address"], process.pid
    finally:
        process.stdin.close()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def crowd(over: Spread, stub: Stub, *, delay_ms: int, at_once: int, seconds: float) -> Run:
    """Measure so many callers at once. They end in waves, and the figures begin and end anywhere in
    one, so there must be many.
    """
    await stub.set(delay_ms=delay_ms, reset=1)
    return await side_by_side(text_act(over.app), at_once, seconds, over.used, generations=_WAVES)


def demand_of(run: Run, delay_ms: int) -> Demand:
    """Return what one deliberation asked of each part in a run."""
    parts = run.parts_ms()
    return Demand(
        serve_ms=parts["serve"], host_ms=parts["host"], bus_ms=parts["bus"], model_ms=delay_ms
    )
