"""The same house with its hosts on a RayCluster, one on each node, which are killed with -9, and their head."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from k8s.conftest import ask
from k8s.roles.conftest import Arrived, rolled_out
from k8s.roles.standing import Seen, Standing

from moothall.domain.event import EventType
from support import gobuilt
from support.kube import house, kuberay
from support.kube.node import nodes
from support.kube.programs import Home, Missing

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

HOSTS, HEAD = "ray.io/cluster=hosts,ray.io/group=hosts", "ray.io/cluster=hosts,ray.io/node-type=head"


async def ready() -> None:
    """Wait until Ray's nodes are there, and the role that starts hosts on them."""
    wanted = "--for=jsonpath={.status.readyWorkerReplicas}=2"
    await ask("-n", house.SPACE, "wait", "raycluster/hosts", wanted, "--timeout=240s")
    await ask("-n", house.SPACE, "wait", "pod", "-l", "ray.io/cluster=hosts", "--for=condition=Ready", "--timeout=240s")
    await rolled_out("deployment/moothall-hosts")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def on_ray(standing: Standing, home: Home, counted: tuple[str, Arrived]) -> Seen:
    """The operator and the RayCluster in place of the one host; what a council comes to there."""
    said: list[str] = []
    try:
        await asyncio.to_thread(kuberay.make, home, said.append)
        for node in nodes(home):
            await asyncio.to_thread(node.give_images, said.append)
        await ask("apply", "--server-side", "-k", await asyncio.to_thread(kuberay.manifests, home))
        await ask("-n", kuberay.SPACE, "rollout", "status", "deployment/kuberay-operator", "--timeout=120s")
        await asyncio.to_thread(house.install, home, house.values(counted[0], ray=True))
    except (gobuilt.Missing, Missing) as missing:
        pytest.fail(str(missing))
    await ask("-n", house.SPACE, "wait", "raycluster/hosts", "--for=jsonpath={.status.desiredWorkerReplicas}=2", "--timeout=60s")
    await ready()
    seen = await standing.council("on-ray")
    assert seen.end.proven
    assert (seen.repeated, seen.decisions) == ([], 1)
    return seen


async def test_there_is_a_host_on_each_node(standing: Standing, on_ray: Seen, home: Home) -> None:
    placed = {pod.spec.node_name for pod in await standing.pods(HOSTS)}
    assert placed == {node.name for node in nodes(home)}
    assert on_ray.end.winner.endswith("3")
    assert await standing.left() == []


@pytest.mark.parametrize(("what", "selector"), [("hosts", HOSTS), ("head", HEAD)])
async def test_rays_nodes_that_are_killed_change_nothing(what: str, selector: str, standing: Standing, on_ray: Seen) -> None:
    seen = await standing.council(f"without-ray-{what}", standing.killing(selector), EventType.SEAT_PROPOSED)
    assert seen.hit, "somebody was there to be killed"
    assert on_ray.difference(seen) == ""
    assert (seen.repeated, seen.decisions) == ([], 1)
    assert await standing.left() == []
    await ready()
