"""Workspaces in a real cluster. `scripts/test-k8s` sets KUBECONFIG, MOOTHALL_JOBS__IMAGE,
MOOTHALL_JOBS__LINK_IMAGE, and CLUSTER_ADDRESS, an address of this machine that pods can reach.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes import client

from command import Command, git
from moothall.app.command_repository import register
from moothall.app.workspaces import WorkspaceServices, open_workspace_services
from moothall.cli.demo import make_sample_repository
from moothall.concurrency import run_in_background
from moothall.config import Settings
from moothall.domain.evidence import Verdict
from moothall.domain.repository import Prepared, Profile
from moothall.domain.tool import CodeBlock, ToolCall, ToolResult, ToolStatus
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.testing.model import ScriptedModel
from support.kube import reached
from support.kube.reached import WORKSPACES, local_host_settings
from support.repos import SAMPLE, SOLUTION, make_repo

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

UTILS, TESTS = "src/utils.py", "tests/test_utils.py"


@pytest_asyncio.fixture(loop_scope="session")
async def bus(tmp_path: Path) -> AsyncIterator[str]:
    """A bus that pods can reach."""
    async with reached.bus(tmp_path / "bus") as url:
        yield url


async def prepare_repository(
    services: WorkspaceServices, settings: Settings, folder: Path
) -> Prepared:
    repo = await asyncio.to_thread(make_repo, folder / "repo", SAMPLE)
    base = await services.repositories.resolve(await register(settings, str(repo.path), "HEAD"))
    return await services.repositories.prepare(base, print)


def name_of(resource: Any) -> str:
    return str(resource.metadata.name)


async def jobs_left(api: client.ApiClient, seconds: int = 20) -> list[str]:
    """Return the Jobs and pods that remain after a while."""
    remaining: list[str] = []
    for _ in range(5 * seconds + 1):
        jobs = await asyncio.to_thread(client.BatchV1Api(api).list_namespaced_job, WORKSPACES)
        pods = await asyncio.to_thread(client.CoreV1Api(api).list_namespaced_pod, WORKSPACES)
        remaining = [*map(name_of, jobs.items), *map(name_of, pods.items)]
        if not remaining:
            return []
        await asyncio.sleep(0.2)
    return remaining


async def job_labels(api: client.ApiClient) -> dict[str, dict[str, str]]:
    """Return the labels of each existing Job."""
    jobs = await asyncio.to_thread(client.BatchV1Api(api).list_namespaced_job, WORKSPACES)
    items: list[Any] = jobs.items
    return {name_of(item): dict(item.metadata.labels) for item in items}


async def watch_jobs(api: client.ApiClient, labels_by_job: dict[str, dict[str, str]]) -> None:
    """Record every Job with its latest labels."""
    while True:
        labels_by_job.update(await job_labels(api))
        await asyncio.sleep(0.2)


async def call(workspace: Any, tool: str, **arguments: Any) -> Any:
    return await workspace.call(
        ToolCall("r1", tool, arguments, datetime.now(UTC) + timedelta(seconds=60))
    )


async def test_a_repository_is_set_up_changed_and_proven_in_pods(
    tmp_path: Path, bus: str, api: client.ApiClient
) -> None:
    settings = local_host_settings(tmp_path, bus)
    async with open_workspace_services(settings) as services:
        base = await prepare_repository(services, settings, tmp_path)
        assert base.runs["tests"].cases[f"{TESTS}::test_hello_world"] == "failed"
        async with services.workspaces.open(base, "one") as workspace:
            assert (
                await call(workspace, "files.append", path=UTILS, content=SOLUTION)
            ).status is ToolStatus.SUCCESS
            assert (await workspace.check("tests", [TESTS])).verdict is Verdict.PASSED
            patch = await workspace.patch("Add hello_world()")
        assert patch.paths == (UTILS,)
        async with services.workspaces.open(
            base, "clean", patch=patch.diff, judged=True
        ) as workspace:
            assert (await workspace.check("tests", [TESTS])).verdict is Verdict.PASSED
    assert await jobs_left(api) == []


@pytest_asyncio.fixture(loop_scope="session")
async def services(tmp_path: Path, bus: str) -> AsyncIterator[WorkspaceServices]:
    async with open_workspace_services(local_host_settings(tmp_path, bus)) as services:
        yield services


async def bare(
    folder: Path, bus: str, services: WorkspaceServices, files: Mapping[str, str], **checks: str
) -> Prepared:
    """A repository with checks that need no set-up and no environment."""
    repo = await asyncio.to_thread(make_repo, folder / "repo", files)
    base = await services.repositories.resolve(
        await register(local_host_settings(folder, bus), str(repo.path), "HEAD")
    )
    profile = Profile(
        checks={name: ("/usr/bin/python3", "-c", code) for name, code in checks.items()}
    )
    return await services.repositories.prepare(replace(base, profile=profile), print)


ODD = ['it\'s "quoted".txt', "$(touch pwned).txt", "two;lines&.txt", "-rf", "`id`", "späße 🎉.txt"]


async def test_values_with_quotes_and_newlines_are_unchanged(
    tmp_path: Path, bus: str, services: WorkspaceServices, api: client.ApiClient
) -> None:
    base = await bare(
        tmp_path,
        bus,
        services,
        dict.fromkeys(ODD, "$(id) \"'\n"),
        see="import os; print(sorted(os.listdir()))",
    )
    assert base.runs["see"].output.strip().splitlines()[-1] == repr(sorted(ODD))
    async with services.workspaces.open(base, "one") as workspace:
        for name in ODD[:2]:
            result = await call(workspace, "files.write", path=name, content="$(id)\n'; rm -rf /\n")
            assert result.status is ToolStatus.SUCCESS, result
        assert [change.path for change in await workspace.changes()] == sorted(ODD[:2])


async def test_commands_in_a_pod_have_no_credentials_and_write_nowhere_else(
    tmp_path: Path, bus: str, services: WorkspaceServices
) -> None:
    code = (
        "import os, pathlib\n"
        "print('TOKEN', pathlib.Path('/var/run/secrets').exists(), 'BUS', 'nats' in "
        "open('/proc/1/environ').read() if os.access('/proc/1/environ', 4) else False)\n"
        "for place in ('/', '/opt/moothall', '/env', '/etc', '/opt/config'):\n"
        "    try:\n        open(place + '/x', 'w'); print('WROTE', place)\n    except OSError: "
        "pass\n"
        "print('UID', os.getuid(), 'LINK', os.path.exists('/link/link.sock'))"
    )
    base = await bare(tmp_path, bus, services, SAMPLE, look=code)
    output = base.runs["look"].output
    assert "TOKEN False BUS False" in output
    assert "WROTE" not in output
    assert "UID 1000 LINK False" in output


async def test_exhausted_memory_and_disk_are_reported(
    tmp_path: Path, bus: str, services: WorkspaceServices
) -> None:
    fill = (
        "import time\nfor n in range(3000):\n    open(f'{n}', 'wb').write(bytes(1_000_000))\n    "
        "time.sleep(0.005)"
    )
    base = await bare(
        tmp_path,
        bus,
        services,
        SAMPLE,
        memory="x = bytearray(5_000_000_000); print(len(x))",
        disk=fill,
    )
    assert base.runs["memory"].status == ToolStatus.MEMORY, base.runs["memory"]
    assert base.runs["disk"].status == ToolStatus.DISK, base.runs["disk"]


async def test_python_blocks_run_in_the_pod_on_its_files(
    tmp_path: Path, bus: str, services: WorkspaceServices
) -> None:
    async def ask(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        result: ToolResult = await call(workspace, tool, **arguments)
        return result

    base = await bare(tmp_path, bus, services, SAMPLE)
    assert services.run_code is not None
    async with services.workspaces.open(base, "one") as workspace:
        until = datetime.now(UTC) + timedelta(seconds=60)
        first = await services.run_code(CodeBlock("1 + 1", {}, until, "local"), workspace, ask)
        assert (first.status, first.value, first.tier) == (ToolStatus.SUCCESS, 2, "monty")
        code = (
            "import pathlib\npathlib.Path('made.txt').write_text('by a block')\n"
            "print(files.read(path='made.txt'))"
        )
        full = await workspace.run_code(
            CodeBlock(code, {"files.read": ("path",)}, until, "local"), ask
        )
        assert full.status is ToolStatus.SUCCESS
        assert "by a block" in full.printed
        assert [change.path for change in await workspace.changes()] == ["made.txt"]


async def test_a_missing_image_is_reported(tmp_path: Path, bus: str, api: client.ApiClient) -> None:
    async with open_workspace_services(
        local_host_settings(tmp_path, bus, image="registry.local/nothing:1")
    ) as services:
        with pytest.raises(
            SandboxUnavailable, match=r"'registry.local/nothing:1' of (hands|code) cannot be pulled"
        ):
            await bare(tmp_path, bus, services, SAMPLE, see="print(1)")
    assert await jobs_left(api) == []


async def test_an_exhausted_quota_is_reported(
    tmp_path: Path, bus: str, services: WorkspaceServices, api: client.ApiClient
) -> None:
    core = client.CoreV1Api(api)
    quota = client.V1ResourceQuota(
        metadata=client.V1ObjectMeta(name="none"),
        spec=client.V1ResourceQuotaSpec(hard={"pods": "0"}),
    )
    await asyncio.to_thread(core.create_namespaced_resource_quota, WORKSPACES, quota)
    try:
        await asyncio.sleep(2)  # until the quota is updated
        with pytest.raises(
            SandboxUnavailable, match=r"the cluster refuses its pod: .*exceeded quota: none"
        ):
            await bare(tmp_path, bus, services, SAMPLE, see="print(1)")
    finally:
        await asyncio.to_thread(core.delete_namespaced_resource_quota, "none", WORKSPACES)
    assert await jobs_left(api) == []


async def test_a_pod_killed_in_the_middle_is_reported(
    tmp_path: Path, bus: str, services: WorkspaceServices, api: client.ApiClient
) -> None:
    core = client.CoreV1Api(api)
    base = await bare(tmp_path, bus, services, SAMPLE)
    base = replace(base, base=replace(base.base, profile=Profile(checks={"wait": ("sleep", "60")})))
    async with services.workspaces.open(base, "one") as workspace:
        checking = asyncio.create_task(workspace.check("wait"))
        await asyncio.sleep(1)
        pods = await asyncio.to_thread(core.list_namespaced_pod, WORKSPACES)
        for pod in pods.items:
            await asyncio.to_thread(
                core.delete_namespaced_pod, name_of(pod), WORKSPACES, grace_period_seconds=0
            )
        with pytest.raises(WorkspaceFailed, match=r"deleted|ended with|executor is gone"):
            await checking
    assert await jobs_left(api) == []


async def test_a_council_in_jobs_finds_the_same_winner_as_locally(
    tmp_path: Path, bus: str, model: ScriptedModel, api: client.ApiClient
) -> None:
    diffs, labels_by_job = [], dict[str, dict[str, str]]()
    in_jobs = {
        "MOOTHALL_WORKSPACE__KIND": "kubernetes",
        "MOOTHALL_JOBS__IMAGE": os.environ["MOOTHALL_JOBS__IMAGE"],
        "MOOTHALL_JOBS__LINK_IMAGE": os.environ["MOOTHALL_JOBS__LINK_IMAGE"],
        "MOOTHALL_JOBS__CPU": "1",
        "MOOTHALL_JOBS__NAMESPACE": WORKSPACES,
        "MOOTHALL_SANDBOX__MEMORY_BYTES": "600000000",
        "MOOTHALL_BUS__URL": bus,
    }
    for name, extra in (("here", {}), ("jobs", in_jobs)):
        repo = tmp_path / name / "repo"
        await make_sample_repository(repo)
        command = Command(
            tmp_path / name / "data", model.base_url, {"MOOTHALL_RAY__MODE": "process", **extra}
        )
        arguments = (
            "deliberate",
            "--repo",
            str(repo),
            "--agents",
            "3",
            "--json",
            "Add hello_world() function to src/utils.py",
        )
        async with run_in_background(watch_jobs(api, labels_by_job), "jobs"):
            # About ten pods with sequential set-up: minutes on a busy machine.
            result = await command(*arguments, seconds=900)
        assert result.code == 0, result.err
        assert result.document["proven"] is True
        assert len(result.document["results"]) == 3
        assert bool(labels_by_job) == (name == "jobs")
        diffs.append(
            (
                git(repo, "show", result.document["branch"], "--format="),
                result.document["results"][0]["checks"],
            )
        )
    assert diffs[0] == diffs[1]
    tasks = {
        labels["moothall/task"] for labels in labels_by_job.values() if "moothall/task" in labels
    }
    assert len(tasks) == 1, labels_by_job
    seats = {
        labels["moothall/seat"]: job
        for job, labels in labels_by_job.items()
        if "moothall/seat" in labels
    }
    assert len(seats) == 3, f"not three seats in separate Jobs: {labels_by_job}"
    assert await jobs_left(api) == []
