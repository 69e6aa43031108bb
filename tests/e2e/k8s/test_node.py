"""The loss of a node with a workspace on it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from k8s.test_jobs import bare, bus, jobs_left  # noqa: F401 - `bus` is a fixture
from kubernetes import client

from moothall.app.workspaces import open_workspace_services
from moothall.domain.repository import Profile
from moothall.errors import WorkspaceFailed
from support.kube.ctl import ask
from support.kube.killing import bring_back
from support.kube.node import Node, nodes
from support.kube.programs import Home
from support.kube.reached import local_host_settings
from support.repos import SAMPLE

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        len(nodes(Home.of_user())) != 2,
        reason="it kills the second of two nodes of scripts/cluster up --nodes 2",
    ),
]


async def test_a_lost_node_is_reported_and_another_takes_over(
    tmp_path: Path,
    bus: str,  # noqa: F811 - the fixture
    api: client.ApiClient,
) -> None:
    node_settings = local_host_settings(
        tmp_path / "there", bus, node_selector={"kubernetes.io/hostname": "node2"}
    )
    async with (
        open_workspace_services(node_settings) as services,
        open_workspace_services(local_host_settings(tmp_path / "any", bus)) as open_services,
    ):
        base = await bare(tmp_path / "there", bus, services, SAMPLE, tests="print('ran')")
        base = replace(
            base, base=replace(base.base, profile=Profile(checks={"wait": ("sleep", "200")}))
        )
        try:
            async with services.workspaces.open(base, "one") as workspace:
                checking = asyncio.create_task(workspace.check("wait"))
                await asyncio.sleep(1)
                Node(Home.of_user(), 2).kill()
                with pytest.raises(WorkspaceFailed) as failure:
                    async with asyncio.timeout(120):
                        await checking
            assert re.search(
                r"pod of moothall-.*: the other end sent nothing|lost|deleted",
                failure.value.message,
            )
            await ask("wait", "--for=condition=Ready=Unknown", "node/node2", "--timeout=90s")
            second_run = await bare(
                tmp_path / "any", bus, open_services, SAMPLE, tests="print('ran')"
            )
            assert second_run.runs["tests"].output.strip().endswith("ran")
        finally:
            await bring_back()
    assert await jobs_left(api, seconds=60) == []
    # Pods of the overlay, if earlier tests installed it.
    for workload in ("statefulset/nats", "deployment/moothall"):
        await ask("-n", "moothall", "rollout", "status", workload, "--timeout=180s", check=False)
