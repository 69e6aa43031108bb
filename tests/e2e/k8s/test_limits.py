"""Causes outside the pod that end it: the container's memory limit across processes, the disk limit
that the node enforces, and pod security. Each is reported in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from k8s.test_jobs import bare, bus, jobs_left, services  # noqa: F401 - `bus` and `services` are fixtures
from kubernetes import client

from moothall.app.workspaces import WorkspaceServices, open_workspace_services
from moothall.domain.tool import ToolStatus
from moothall.errors import MoothallError
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.manifest import job
from support.kube.reached import local_host_settings
from support.repos import SAMPLE

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

# Each is below sandbox.memory_bytes (600 MB), so that no per-process limit ends it; together they
# exceed the container's limit.
TOGETHER = """
import os, sys, time
children = []
for _ in range(COUNT):
    if not (pid := os.fork()):
        held = bytearray(b"x") * 300_000_000
        time.sleep(4)
        os._exit(0)
    children.append(pid)
ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(ended)
sys.exit(any(ended))
"""
# Above the pod's limit and below sandbox.disk_bytes, so that the node's limit applies first.
FILL = (
    "import time\nfor n in range(800):\n    open(f'{n}', 'wb').write(bytes(1_000_000))\n"
    "time.sleep(150)"
)


async def test_processes_that_together_exceed_the_containers_memory_are_reported(
    tmp_path: Path,
    bus: str,  # noqa: F811 - the fixture
    services: WorkspaceServices,  # noqa: F811 - the fixture
) -> None:
    checks = {
        name: TOGETHER.replace("COUNT", count) for name, count in (("one", "1"), ("three", "3"))
    }
    base = await bare(tmp_path, bus, services, SAMPLE, **checks)
    assert base.runs["one"].status == ToolStatus.SUCCESS, "one process alone is within all limits"
    assert base.runs["three"].status == ToolStatus.MEMORY, base.runs["three"]


async def test_a_pod_evicted_for_its_disk_use_is_reported(
    tmp_path: Path,
    bus: str,  # noqa: F811
    api: client.ApiClient,
) -> None:
    small = local_host_settings(tmp_path, bus, disk_bytes=200_000_000)
    async with open_workspace_services(small) as services:  # noqa: F811 - not the fixture
        with pytest.raises(MoothallError, match=r"its pod was ended: Evicted: .* exceeds "):
            await bare(tmp_path, bus, services, SAMPLE, fill=FILL)
    assert await jobs_left(api) == []


async def test_a_pod_refused_by_pod_security_is_reported(
    tmp_path: Path,
    bus: str,  # noqa: F811
    api: client.ApiClient,
) -> None:
    settings = local_host_settings(tmp_path, bus)
    async with Cluster(settings.jobs, "test") as cluster:
        manifest: dict[str, Any] = job(
            "refused", cluster.labels, ExecutorSetup("refused", ()), settings, {}
        )
        for container in manifest["spec"]["template"]["spec"]["containers"]:
            del container["securityContext"]
        await cluster.create(manifest)
        reason = await cluster.wait_for_failure("refused")
    assert reason.startswith("the cluster refuses its pod: "), reason
    assert 'violates PodSecurity "restricted' in reason
    assert "allowPrivilegeEscalation" in reason
    assert await jobs_left(api) == []
