"""Jobs and the hosts that create them: spare Jobs, and the remains of a killed host. Requires the
same as `test_jobs`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from k8s.test_jobs import bare, bus, call, job_labels, jobs_left, name_of  # noqa: F401 - `bus` is a fixture
from kubernetes import client

from moothall import telemetry
from moothall.app.workspaces import open_workspace_services
from moothall.domain.tool import ToolStatus
from support.kube.reached import WORKSPACES, local_host_settings
from support.repos import SAMPLE

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

HOST = """
import asyncio, json, sys
from pathlib import Path
from k8s.test_jobs import bare
from support.repos import SAMPLE
from support.kube.reached import local_host_settings
from moothall.app.workspaces import open_workspace_services

async def main():
    folder, bus = Path(sys.argv[1]), sys.argv[2]
    settings = local_host_settings(folder, bus, **json.loads(sys.argv[3]))
    async with open_workspace_services(settings) as services:
        base = await bare(folder, bus, services, SAMPLE)
        async with services.workspaces.open(base, "one"):
            print("open", flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


async def hosting(folder: Path, url: str, **jobs: Any) -> asyncio.subprocess.Process:
    """Run a host in a separate process; it has a workspace open once it reports so."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOST,
        str(folder),
        url,
        json.dumps(jobs),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def test_a_killed_host_leaves_no_job(
    tmp_path: Path,
    bus: str,  # noqa: F811 - the fixture
    api: client.ApiClient,
) -> None:
    host = await hosting(tmp_path, bus)
    assert host.stdout is not None
    async with asyncio.timeout(90):
        while await host.stdout.readline() != b"open\n":
            assert host.returncode is None
    host.kill()
    await host.wait()
    assert await jobs_left(api, seconds=150) == []


NEVER: dict[str, dict[str, Any]] = {
    "images that are not there": {
        "image": "registry.local/nothing:1",
        "link_image": "registry.local/nothing:1",
    },
    "no node": {"node_selector": {"pool": "none"}},
}


@pytest.mark.parametrize("reason", NEVER)
async def test_a_killed_hosts_job_whose_link_never_ran_is_deleted_by_another_host(
    reason: str,
    tmp_path: Path,
    bus: str,  # noqa: F811 - the fixture
    api: client.ApiClient,
) -> None:
    host = await hosting(tmp_path, bus, **NEVER[reason])
    async with asyncio.timeout(90):
        while not await jobs_left(api, seconds=0):
            await asyncio.sleep(0.05)
    host.kill()
    await host.wait()
    remaining = await jobs_left(api, seconds=8)
    assert remaining, "nothing else deletes the Job: it would stay until jobs.seconds have passed"
    async with open_workspace_services(local_host_settings(tmp_path / "other", bus)):
        assert await jobs_left(api, seconds=170) == []


async def test_a_spare_is_used_replaced_after_a_kill_and_deleted_at_the_end(
    tmp_path: Path,
    bus: str,  # noqa: F811 - the fixture
    api: client.ApiClient,
) -> None:
    async def spare(*excluded: str) -> str:
        """Wait for a free Job other than these."""
        async with asyncio.timeout(90):
            while True:
                for name, labels in (await job_labels(api)).items():
                    if name not in excluded and "moothall/task" not in labels:
                        return name
                await asyncio.sleep(0.2)

    async def of_seat(seat: str) -> str:
        async with asyncio.timeout(20):
            while True:
                for name, labels in (await job_labels(api)).items():
                    if labels.get("moothall/seat") == seat:
                        return name
                await asyncio.sleep(0.2)

    async with open_workspace_services(local_host_settings(tmp_path, bus, warm=1)) as services:
        base = await bare(tmp_path, bus, services, SAMPLE)
        with telemetry.bound(task_id="warm", seat="first"):
            async with services.workspaces.open(base, "one"):
                ready = await spare()
        with telemetry.bound(task_id="warm", seat="second"):
            async with services.workspaces.open(base, "two"):
                assert await of_seat("second") == ready
                killed = await spare(ready)
                async with asyncio.timeout(90):
                    while not (
                        pods := await asyncio.to_thread(
                            client.CoreV1Api(api).list_namespaced_pod,
                            WORKSPACES,
                            label_selector=f"job-name={killed}",
                        )
                    ).items:
                        await asyncio.sleep(0.2)
                await asyncio.to_thread(
                    client.CoreV1Api(api).delete_namespaced_pod,
                    name_of(pods.items[0]),
                    WORKSPACES,
                    grace_period_seconds=0,
                )
        await asyncio.sleep(3)  # until the host has received it
        with telemetry.bound(task_id="warm", seat="third"):
            async with services.workspaces.open(base, "three") as workspace:
                assert (await call(workspace, "files.list", path=".")).status is ToolStatus.SUCCESS
                assert await of_seat("third") not in {ready, killed}
                assert await spare(killed) != ready
    assert await jobs_left(api) == []
