"""The other NetworkPolicies of deploy/k8s: for hosts on Ray, Neo4j, vLLM and outbound connections.

The tests' enforcer applies them in a separate namespace. Pods with the labels of the real ones
stand in for them. Every connection is tried before the policies apply, too.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from kubernetes import client

from support.kube import manifests
from support.kube.ctl import ask
from support.kube.node import FIRST, HOST, nodes
from support.kube.policies import enforce_policies
from support.kube.probes import METADATA, address, listening, probe, reaches, running_pods
from support.kube.programs import Home
from support.kube.reached import DEPLOY

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        not nodes(Home.of_user()),
        reason="the enforcer holds the nodes of scripts/cluster; this cluster has its own",
    ),
]

SPACE, PUBLIC = "isolated", "203.0.113.9"
RAY = {"ray.io/cluster": "hosts"}
NEO4J, VLLM, SERVICES = ({"app.kubernetes.io/name": name} for name in ("neo4j", "vllm", "moothall"))
TRIED = {
    # columns: source, target, port, whether it is allowed
    "services ask Ray's head": ("services", "head", 6379, True),
    "hosts ask Ray's head": ("ray-host", "head", 6379, True),
    "somebody in the namespace asks Ray's head": ("stranger", "head", 6379, False),
    "somebody elsewhere asks Ray's head": ("elsewhere", "head", 6379, False),
    "services ask Neo4j": ("services", "neo4j", 7687, True),
    "services ask another port of Neo4j's": ("services", "neo4j", 7474, False),
    "hosts ask Neo4j": ("ray-host", "neo4j", 7687, True),
    "somebody in the namespace asks Neo4j": ("stranger", "neo4j", 7687, False),
    "somebody elsewhere asks Neo4j": ("elsewhere", "neo4j", 7687, False),
    "services ask vLLM": ("services", "vllm", 8000, True),
    "hosts ask vLLM": ("ray-host", "vllm", 8000, True),
    "somebody elsewhere asks vLLM": ("elsewhere", "vllm", 8000, False),
    "services ask the API server": ("services", FIRST, 6443, True),
    "services ask the kubelet": ("services", FIRST, 10250, False),
    "services ask the metadata address": ("services", METADATA, 80, False),
    "hosts ask the metadata address": ("ray-host", METADATA, 80, False),
    "hosts ask something private": ("ray-host", HOST, 443, False),
    "hosts ask a pod elsewhere": ("ray-host", "elsewhere", 443, False),
    "hosts ask a public server": ("ray-host", PUBLIC, 443, True),
    "hosts ask a public server on another port": ("ray-host", PUBLIC, 8443, False),
    "somebody elsewhere asks the metadata address": ("elsewhere", METADATA, 80, True),
    "somebody elsewhere asks a public server on another port": ("elsewhere", PUBLIC, 8443, True),
}


def policies() -> list[dict[str, object]]:
    """Return the policies of the prod namespace and of the component egress, which allows the API
    server of this cluster.
    """
    objects = manifests.objects(manifests.run_kustomize(DEPLOY / "overlays/prod"))
    network_policies = [
        manifest
        for (kind, space, _), manifest in objects.items()
        if (kind, space) == ("NetworkPolicy", "moothall")
    ]
    egress = (
        (DEPLOY / "components/egress/network.yaml")
        .read_text(encoding="utf-8")
        .replace("192.0.2.1/32", f"{FIRST}/32")
    )
    network_policies += yaml.safe_load_all(egress)
    for manifest in network_policies:
        manifest["metadata"]["namespace"] = SPACE
    return network_policies


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def namespaces() -> AsyncIterator[dict[str, str]]:
    """The pods by name, each in its namespace, with the policies in force."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}}
    await ask("apply", "-f", "-", stdin=json.dumps(space))
    await ask(
        "apply",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": policies()}),
    )
    pods = [
        probe("head", SPACE, RAY, 6379),
        probe("ray-host", SPACE, RAY),
        probe("neo4j", SPACE, NEO4J, 7687, 7474),
        probe("vllm", SPACE, VLLM, 8000),
        probe("services", SPACE, SERVICES),
        probe("stranger", SPACE),
        probe("elsewhere", "default", {}, 443),
    ]
    with socket.create_server((HOST, 443)):
        async with running_pods(*pods), listening(METADATA, 80), listening(PUBLIC, 443, 8443):
            yield {pod["metadata"]["name"]: pod["metadata"]["namespace"] for pod in pods}
    await ask("delete", "namespace", SPACE, "--wait=false")


async def can_connect(namespaces: dict[str, str]) -> dict[str, bool]:
    connections = {}
    for attempt, (source, target, port, _) in TRIED.items():
        host = await address(target, namespaces[target]) if target in namespaces else target
        connections[attempt] = await reaches(source, namespaces[source], host, port)
    return connections


async def test_network_policies_for_hosts_neo4j_vllm_and_outbound_traffic_are_enforced(
    namespaces: dict[str, str], api: client.ApiClient
) -> None:
    free = await can_connect(namespaces)
    assert [attempt for attempt, connected in free.items() if not connected] == [], (
        "no policy is enforced yet"
    )
    with enforce_policies(api, Home.of_user(), SPACE):
        await asyncio.sleep(1)
        assert await can_connect(namespaces) == {
            attempt: expected for attempt, (_, _, _, expected) in TRIED.items()
        }
        assert await reaches("services", SPACE, "kubernetes.default", 443), (
            "by name, which is resolved first"
        )
