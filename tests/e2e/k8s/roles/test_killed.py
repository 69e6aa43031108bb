"""Each part of a deployment by role is killed with SIGKILL during a council: the outcome is the
same as without.
"""

from __future__ import annotations

from typing import Any

import pytest
from k8s.roles.role_deployment import CouncilResult, RoleDeployment

from moothall.domain.event import EventType
from support.kube.ctl import ask
from support.kube.deployment import WORKSPACES
from support.kube.killing import bring_back
from support.kube.node import Node
from support.kube.programs import Home
from support.kube.stood import all_rolled_out, wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


KILLED: dict[str, tuple[dict[str, Any], EventType]] = {
    "api": ({"selector": "app.kubernetes.io/component=api"}, EventType.MODEL_CALLED),
    "collector": ({"selector": "app.kubernetes.io/component=collector"}, EventType.CHECK_FINISHED),
    "hosts": ({"selector": "app.kubernetes.io/component=hosts"}, EventType.SEAT_PROPOSED),
    "tools": ({"selector": "app.kubernetes.io/component=tools"}, EventType.MODEL_CALLED),
    "neo4j": ({"selector": "app.kubernetes.io/name=neo4j"}, EventType.MODEL_CALLED),
    "a bus server": (
        {"selector": "statefulset.kubernetes.io/pod-name=nats-1"},
        EventType.SEAT_PROPOSED,
    ),
    "workspaces": (
        {"selector": "", "container": "hands", "space": WORKSPACES},
        EventType.SEAT_PROPOSED,
    ),
}


@pytest.mark.parametrize("process", KILLED)
async def test_a_process_killed_during_a_council_does_not_change_the_outcome(
    process: str, role_deployment: RoleDeployment, undisturbed: CouncilResult
) -> None:
    victim, at = KILLED[process]
    result = await role_deployment.council(
        f"without-{process.replace(' ', '-')}", role_deployment.killing(**victim), at
    )
    assert result.hit, "no process was killed"
    assert undisturbed.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    assert await role_deployment.leftovers() == []
    await role_deployment.wait_for_graph()
    await wait_for_rollout("statefulset/nats", "statefulset/neo4j")


@pytest.mark.alone
async def test_a_node_lost_during_a_council_does_not_change_the_outcome(
    role_deployment: RoleDeployment, undisturbed: CouncilResult, home: Home
) -> None:
    lost_node = Node(home, 2)  # the first node runs the control plane

    async def blow() -> int:
        pods = [
            pod for pod in await role_deployment.pods("") if pod.spec.node_name == lost_node.name
        ]
        lost_node.kill()
        await ask(
            "wait", "--for=condition=Ready=Unknown", f"node/{lost_node.name}", "--timeout=90s"
        )
        await bring_back()
        return len(pods)

    try:
        result = await role_deployment.council("without-a-node", blow, EventType.SEAT_PROPOSED)
    finally:
        await bring_back()
    assert result.hit, "no pod of the server ran on the node"
    assert undisturbed.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    await all_rolled_out()
    assert await role_deployment.leftovers() == []
    await role_deployment.wait_for_graph()
