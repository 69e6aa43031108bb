"""The same deployment with its hosts on a RayCluster of the KubeRay operator, one on each node. A
host is killed with SIGKILL, then the head; then all are replaced.
"""

from __future__ import annotations

import asyncio
import json

import pytest
import pytest_asyncio
from k8s.roles.conftest import Counted
from k8s.roles.role_deployment import CouncilResult, RoleDeployment

from moothall.domain.event import EventType
from support import gobuilt
from support.kube import deployment, page
from support.kube.addons import RAY
from support.kube.ctl import ask
from support.kube.node import nodes
from support.kube.programs import Home, Missing
from support.kube.stood import apply_kustomization, give_images, wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

HOSTS, HEAD = (
    "ray.io/cluster=hosts,ray.io/group=hosts",
    "ray.io/cluster=hosts,ray.io/node-type=head",
)


async def wait_until_ready() -> None:
    """Wait for Ray's nodes and for the role that starts hosts on them."""
    await wait_for_kuberay("raycluster/hosts", "--for=jsonpath={.status.readyWorkerReplicas}=2")
    await wait_for_kuberay("pod", "-l", "ray.io/cluster=hosts", "--for=condition=Ready")
    await wait_for_rollout("deployment/moothall-hosts")


async def wait_for_kuberay(*arguments: str) -> None:
    """Wait for objects that KubeRay creates. Raises `AssertionError` with the logs of its pods."""
    try:
        await ask("-n", deployment.SPACE, "wait", *arguments, "--timeout=240s")
    except AssertionError as error:
        description = await ask(
            "-n", deployment.SPACE, "describe", "pods", "-l", "ray.io/cluster=hosts"
        )
        logs = await ask(
            "-n", RAY.space, "logs", "deployment/kuberay-operator", "--tail=20", check=False
        )
        raise AssertionError(f"{error}\n{description[-6000:]}\n{logs[-4000:]}") from error


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ray_deployment(
    role_deployment: RoleDeployment, home: Home, counted: Counted
) -> CouncilResult:
    """The operator and the RayCluster in place of the single host, and the outcome of a council
    there.
    """
    try:
        await asyncio.to_thread(RAY.make, home, print)
        await give_images(home)
        await apply_kustomization(await asyncio.to_thread(RAY.applied, home))
        await ask(
            "-n", RAY.space, "rollout", "status", "deployment/kuberay-operator", "--timeout=120s"
        )
        await asyncio.to_thread(deployment.install, home, deployment.values(counted.url, ray=True))
    except (gobuilt.Missing, Missing) as missing:
        pytest.fail(str(missing))
    await wait_for_kuberay("raycluster/hosts", "--for=jsonpath={.status.desiredWorkerReplicas}=2")
    await wait_until_ready()
    result = await role_deployment.council("on-ray")
    assert result.end.proven
    assert (result.repeated, result.decisions) == ([], 1)
    return result


async def test_each_node_has_a_host(
    role_deployment: RoleDeployment, ray_deployment: CouncilResult, home: Home
) -> None:
    pods = await role_deployment.pods(HOSTS)
    assert {pod.spec.node_name for pod in pods} == {node.name for node in nodes(home)}
    fleet = json.loads(
        await ask(
            "-n",
            deployment.SPACE,
            "exec",
            "deploy/moothall-api",
            "--",
            "moothall",
            "fleet",
            "--json",
        )
    )
    assert {host["node"] for host in fleet["hosts"]} == {pod.status.pod_ip for pod in pods}
    assert ray_deployment.end.winner.endswith("3")
    assert await role_deployment.leftovers() == []


KILLED = {"a host": (HOSTS, 1), "the head": (HEAD, 1)}


@pytest.mark.parametrize("process", KILLED)
async def test_killed_ray_nodes_do_not_change_the_outcome(
    process: str, role_deployment: RoleDeployment, ray_deployment: CouncilResult
) -> None:
    selector, limit = KILLED[process]
    result = await role_deployment.council(
        f"without-{process.replace(' ', '-')}-of-ray",
        role_deployment.killing(selector, limit=limit),
        EventType.SEAT_PROPOSED,
    )
    assert result.hit, "no process was killed"
    assert ray_deployment.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    assert await role_deployment.leftovers() == []
    await wait_until_ready()


async def test_replacing_hosts_with_the_documented_command_does_not_change_the_outcome(
    role_deployment: RoleDeployment, ray_deployment: CouncilResult
) -> None:
    old = {pod.metadata.uid for pod in await role_deployment.pods("ray.io/cluster=hosts")}

    async def blow() -> int:
        await page.run(
            page.by_role(page.line("delete pods -l ray.io/cluster=hosts"), deployment.SPACE)
        )
        return len(old)

    result = await role_deployment.council("hosts-replaced", blow, EventType.SEAT_PROPOSED)
    assert ray_deployment.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    await wait_until_ready()
    assert old.isdisjoint(
        pod.metadata.uid for pod in await role_deployment.pods("ray.io/cluster=hosts")
    )
    assert await role_deployment.leftovers() == []
