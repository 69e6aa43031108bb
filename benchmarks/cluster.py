"""Measure Moothall in a Kubernetes cluster: the start of a workspace in a Job, cold and from the
warm pool, and deliberations a second by the number of host pods.

`scripts/test-k8s --part benchmark` creates a temporary cluster and sets the environment. All nodes
share the cores of one machine, so the CPU limit of a host pod is so low that hosts are the
bottleneck, as in `scaling`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.load import run_concurrent
from benchmarks.microbenchmarks import Times, prepare_repository
from benchmarks.server import DEFERRED_GRAPH
from benchmarks.stub import Stub, running_stub
from benchmarks.workload import text_operation
from moothall.app.workspaces import open_workspace_services
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from support.kube import deployment, reached
from support.kube.ctl import ask
from support.kube.programs import Home
from support.kube.stood import install_deployment, wait_for_rollout
from support.repos import make_repo

_VARIABLES = ("KUBECONFIG", "CLUSTER_ADDRESS", "MOOTHALL_JOBS__IMAGE", "MOOTHALL_JOBS__LINK_IMAGE")
_PODS = (1, 2, 4)
_AT_ONCE, _DELAY_MS = 32, 50
_CPU_LIMIT = "30m"  # four pods need less than the rest of the deployment leaves unused
_READY_SECONDS, _FILES_SECONDS = 60.0, 5.0
_HOSTS = "deployment/moothall-hosts"


async def measure(
    folder: Path, *, workspace_count: int, seconds: float, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the start of `workspace_count` cold and warm workspaces, and rates over `seconds`.

    Each result includes the load average of the machine.
    """
    if missing := [name for name in _VARIABLES if not os.environ.get(name)]:
        raise SystemExit(
            f"cluster: {', '.join(missing)} not set; scripts/test-k8s --part benchmark sets them"
        )
    await asyncio.to_thread(reached.make_namespaces)
    announce(f"{workspace_count} workspaces in Jobs, cold and warm")
    figures: dict[str, Any] = {
        "cold": await _measure_starts(folder / "cold", workspace_count, warm=0),
        "warm": await _measure_starts(folder / "warm", workspace_count, warm=1),
    }
    announce("the deployment with a process for each role")
    async with (
        running_stub(os.environ["CLUSTER_ADDRESS"]) as stub,
        _deployment(folder, stub) as caller,
    ):
        await stub.set(delay_ms=_DELAY_MS)
        figures["pods"] = [await _measure_pods(count, caller, seconds, announce) for count in _PODS]
    return {**figures, "cpu_limit": _CPU_LIMIT, "at_once": _AT_ONCE, "delay_ms": _DELAY_MS}


async def _measure_starts(folder: Path, count: int, *, warm: int) -> dict[str, float]:
    """Open workspaces one after the other, each until its first tool can run.

    warm: the number of workspaces in the warm pool, which is filled again before each start.
    """
    make_repo(folder / "repo", {"src/utils.py": "x = 1\n" * 40, "Makefile": "test:\n\ttrue\n"})
    seconds: list[float] = []
    async with reached.bus(folder / "bus") as bus:
        settings = reached.local_host_settings(folder, bus, warm=warm)
        async with open_workspace_services(settings) as services:
            base = await prepare_repository(settings, services, folder / "repo")
            async with services.workspaces.open(base, "first"):  # fills the pool
                await _wait_for_workspaces(warm + 1)
            for number in range(count):
                await _wait_for_workspaces(warm)
                start = time.perf_counter()
                async with services.workspaces.open(base, f"bench-{number}"):
                    seconds.append(time.perf_counter() - start)
    times = Times(tuple(seconds))
    return {"p50": times.p50, "p95": times.p95, "count": count, "load": _load()}


async def _wait_for_workspaces(count: int) -> None:
    """Wait until exactly `count` workspaces exist, with all containers ready, and no pod is ending.

    Afterwards, warm workspaces receive their files. This is not visible from outside, so wait some
    more seconds for it.
    """
    until = time.monotonic() + _READY_SECONDS
    job, readiness = "{.metadata.labels.job-name}", "{.status.containerStatuses[*].ready}"
    while True:
        jobs = sorted(
            (await _list("jobs", "{.metadata.name}")).split()
        )  # the Job of a workspace is deleted when it closes
        lines = (await _list("pods", f"{job} {readiness}")).splitlines()
        pods = [line.split() for line in lines]
        if (
            len(jobs) == count
            and sorted(name for name, *_ in pods) == jobs
            and not any("false" in pod for pod in pods)
        ):
            await asyncio.sleep(_FILES_SECONDS if count else 0)
            return
        if time.monotonic() > until:
            raise RuntimeError(
                f"expected {count} ready workspaces within {_READY_SECONDS:g} s; the Jobs are "
                f"{jobs}, the containers of their pods {lines}"
            )
        await asyncio.sleep(0.2)


async def _list(kind: str, path: str) -> str:
    """Return the value at `path` of each object of a kind, one a line."""
    return await ask(
        "-n",
        reached.WORKSPACES,
        "get",
        kind,
        "-o",
        f"jsonpath={{range .items[*]}}{path}{{'\\n'}}{{end}}",
    )


@dataclass(frozen=True, slots=True)
class _Caller:
    """A client of the API servers with several connections, so that the Service distributes the
    calls over all pods of `api`.
    """

    stubs: tuple[OrchestratorServiceStub, ...]

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """Send one unary call."""
        stub = self.stubs[time.monotonic_ns() % len(self.stubs)]
        response: pb.DeliberateResponse = await stub.Deliberate(
            request, metadata=(("authorization", f"Bearer {deployment.TOKEN}"),), timeout=seconds
        )
        return response


@asynccontextmanager
async def _deployment(folder: Path, stub: Stub) -> AsyncIterator[_Caller]:
    home = Home.of_user()
    values = deployment.values(stub.base_url)
    values["settings"] |= {
        **DEFERRED_GRAPH,
        "MOOTHALL_LLM__APPROACHES": "off",
        "MOOTHALL_LLM__CONCURRENCY": "4096",
        "MOOTHALL_LOG__LEVEL": "warning",
    }
    async with install_deployment(home, folder, values):
        page_server = (
            await ask(
                "-n",
                deployment.SPACE,
                "get",
                "service",
                "moothall",
                "-o",
                "jsonpath={.spec.clusterIP}",
            )
        ).strip()
        authority = grpc.ssl_channel_credentials((home.keys / "ca.crt").read_bytes())
        options = [
            ("grpc.ssl_target_name_override", f"moothall.{deployment.SPACE}"),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        channels = [
            grpc.aio.secure_channel(f"{page_server}:50055", authority, options=options)
            for _ in range(4)
        ]
        try:
            yield _Caller(tuple(OrchestratorServiceStub(channel) for channel in channels))
        finally:
            for channel in channels:
                await channel.close()


async def _measure_pods(
    count: int, caller: _Caller, seconds: float, announce: Callable[[str], None]
) -> dict[str, float]:
    """Measure `count` host pods with a CPU limit each.

    The limit is set after the pods have started: with it, a start would take minutes.
    """
    await ask("-n", deployment.SPACE, "scale", _HOSTS, f"--replicas={count}")
    await wait_for_rollout(_HOSTS)
    for pod in (
        await ask(
            "-n",
            deployment.SPACE,
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/component=hosts",
            "-o",
            "name",
        )
    ).split():
        limits = {"name": "moothall", "resources": {"limits": {"cpu": _CPU_LIMIT}}}
        limit = json.dumps({"spec": {"containers": [limits]}})
        await ask(
            "-n",
            deployment.SPACE,
            "patch",
            pod,
            "--subresource=resize",
            "--type=strategic",
            "-p",
            limit,
        )
    await _wait_for_limits(count)
    run = await run_concurrent(text_operation(caller), _AT_ONCE, seconds, _no_cpu, generations=1)
    announce(f"{count} pods: {run.rate:.1f} a second, load {_load():.1f}")
    return {"count": count, "rate": run.rate, "wait": statistics.median(run.waits), "load": _load()}


async def _wait_for_limits(count: int) -> None:
    """Wait until the kubelets enforce the CPU limit of all host pods."""
    until = time.monotonic() + _READY_SECONDS
    path = "{.items[*].status.containerStatuses[0].resources.limits.cpu}"
    while True:
        limits = await ask(
            "-n",
            deployment.SPACE,
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/component=hosts",
            "-o",
            f"jsonpath={path}",
        )
        if limits.split() == [_CPU_LIMIT] * count:
            return
        if time.monotonic() > until:
            raise RuntimeError(
                f"{count} pods should have the limit {_CPU_LIMIT}; they have {limits}"
            )
        await asyncio.sleep(0.5)


def _no_cpu() -> Mapping[str, float]:
    return {}


def _load() -> float:
    return os.getloadavg()[0]
