"""In a cluster: how long a workspace in a Job takes, cold and kept warm; deliberations a second
with one pod of hosts and more.

`scripts/test-k8s --part benchmark` brings the throw-away cluster and says where it is. On one
machine all nodes share its cores: each pod of hosts gets a slice of one that is small enough to be
what the deployment waits for, as in `scaling`.
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

from benchmarks.load import side_by_side
from benchmarks.micro import Times, prepared
from benchmarks.served import GRAPH_LATER
from benchmarks.stub import Stub, running_stub
from benchmarks.workload import text_act
from moothall.app.workspaces import open_workspace_services
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from support.kube import deployment, reached
from support.kube.ctl import ask
from support.kube.programs import Home
from support.kube.stood import rolled_out, stood
from support.repos import make_repo

_NEEDED = ("KUBECONFIG", "CLUSTER_ADDRESS", "MOOTHALL_JOBS__IMAGE", "MOOTHALL_JOBS__LINK_IMAGE")
_PODS = (1, 2, 4)
_AT_ONCE, _DELAY_MS = 32, 50
_SLICE = (
    "30m"  # four of them are less than what the rest of the deployment leaves of a small machine
)
_SPARE_SECONDS, _FILES_SECONDS = 60.0, 5.0
_HOSTS = "deployment/moothall-hosts"


async def measure(
    folder: Path, *, opened: int, seconds: float, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Return milliseconds of `opened` workspaces each way, and rates over `seconds` each; the load
    of the machine beside every figure.
    """
    if missing := [name for name in _NEEDED if not os.environ.get(name)]:
        raise SystemExit(
            f"cluster: {', '.join(missing)} not set; scripts/test-k8s --part benchmark sets them"
        )
    await asyncio.to_thread(reached.make_namespaces)
    announce(f"{opened} workspaces in Jobs, cold and kept warm")
    found: dict[str, Any] = {
        "cold": await _ready(folder / "cold", opened, warm=0),
        "warm": await _ready(folder / "warm", opened, warm=1),
    }
    announce("the deployment by role")
    async with running_stub(os.environ["CLUSTER_ADDRESS"]) as stub, _app(folder, stub) as caller:
        await stub.set(delay_ms=_DELAY_MS)
        found["pods"] = [await _with_pods(count, caller, seconds, announce) for count in _PODS]
    return {**found, "slice": _SLICE, "at_once": _AT_ONCE, "delay_ms": _DELAY_MS}


async def _ready(folder: Path, count: int, *, warm: int) -> dict[str, float]:
    """Open a workspace after another until its first tool can run; where one is kept warm, once
    that is ready.
    """
    make_repo(folder / "repo", {"src/utils.py": "x = 1\n" * 40, "Makefile": "test:\n\ttrue\n"})
    seconds: list[float] = []
    async with reached.bus(folder / "bus") as bus:
        settings = reached.configured(folder, bus, warm=warm)
        async with open_workspace_services(settings) as services:
            base = await prepared(settings, services, folder / "repo")
            async with services.workspaces.open(base, "first"):  # fills the pool
                await _spare(warm + 1)
            for number in range(count):
                await _spare(warm)
                began = time.perf_counter()
                async with services.workspaces.open(base, f"bench-{number}"):
                    seconds.append(time.perf_counter() - began)
    times = Times(tuple(seconds))
    return {"p50": times.p50, "p95": times.p95, "count": count, "load": _load()}


async def _spare(wanted: int) -> None:
    """Wait until there are so many workspaces, each with all its containers ready, and nothing
    else: no pod that is ending is left.

    What is kept warm then gets its files, which nobody outside sees: some seconds are left for
    that.
    """
    until = time.monotonic() + _SPARE_SECONDS
    job, ready = "{.metadata.labels.job-name}", "{.status.containerStatuses[*].ready}"
    while True:
        jobs = sorted(
            (await _found("jobs", "{.metadata.name}")).split()
        )  # a workspace that is closed has no Job from then on
        output_text = (await _found("pods", f"{job} {ready}")).splitlines()
        pods = [line.split() for line in output_text]
        if (
            len(jobs) == wanted
            and sorted(name for name, *_ in pods) == jobs
            and not any("false" in pod for pod in pods)
        ):
            await asyncio.sleep(_FILES_SECONDS if wanted else 0)
            return
        if time.monotonic() > until:
            raise RuntimeError(
                f"{wanted} workspaces were to be ready; the Jobs are {jobs}, their pods' "
                f"containers {output_text}"
            )
        await asyncio.sleep(0.2)


async def _found(kind: str, path: str) -> str:
    """What each says of itself, a line each."""
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
    """Callers of the API servers, by the Service and on connections of their own, so that all pods
    of `api` get some.
    """

    stubs: tuple[OrchestratorServiceStub, ...]

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """One unary call."""
        stub = self.stubs[time.monotonic_ns() % len(self.stubs)]
        answer: pb.DeliberateResponse = await stub.Deliberate(
            request, metadata=(("authorization", f"Bearer {deployment.TOKEN}"),), timeout=seconds
        )
        return answer


@asynccontextmanager
async def _app(folder: Path, stub: Stub) -> AsyncIterator[_Caller]:
    home = Home.of_user()
    values = deployment.values(stub.base_url)
    values["settings"] |= {
        **GRAPH_LATER,
        "MOOTHALL_LLM__APPROACHES": "off",
        "MOOTHALL_LLM__CONCURRENCY": "4096",
        "MOOTHALL_LOG__LEVEL": "warning",
    }
    async with stood(home, folder, values):
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


async def _with_pods(
    count: int, caller: _Caller, seconds: float, announce: Callable[[str], None]
) -> dict[str, float]:
    """So many pods of hosts with a slice each. They start without one, which would take them
    minutes.
    """
    await ask("-n", deployment.SPACE, "scale", _HOSTS, f"--replicas={count}")
    await rolled_out(_HOSTS)
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
        limits = {"name": "moothall", "resources": {"limits": {"cpu": _SLICE}}}
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
    await _resized(count)
    run = await side_by_side(text_act(caller), _AT_ONCE, seconds, _nothing, generations=1)
    announce(f"{count} pods: {run.rate:.1f} a second, load {_load():.1f}")
    return {"count": count, "rate": run.rate, "wait": statistics.median(run.waits), "load": _load()}


async def _resized(count: int) -> None:
    """Wait until the kubelets hold all of them to their slice."""
    until = time.monotonic() + _SPARE_SECONDS
    path = "{.items[*].status.containerStatuses[0].resources.limits.cpu}"
    while True:
        output_text = await ask(
            "-n",
            deployment.SPACE,
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/component=hosts",
            "-o",
            f"jsonpath={path}",
        )
        if output_text.split() == [_SLICE] * count:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"{count} pods were to have {_SLICE} each; they have {output_text}")
        await asyncio.sleep(0.5)


def _nothing() -> Mapping[str, float]:
    return {}


def _load() -> float:
    return os.getloadavg()[0]
