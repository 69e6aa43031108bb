"""NetworkPolicies of deploy/k8s, held by the enforcer of tests: what a workspace's pod tries is refused, and the same from a pod that no
policy holds gets through, without which "refused" would prove nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from k8s.test_deploy import installed, reachable  # noqa: F401 - fixtures
from kubernetes import client

from support.kube.ctl import ask
from support.kube.node import FIRST, nodes
from support.kube.policies import enforced
from support.kube.programs import Home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        not nodes(Home.of_user()), reason="the enforcer holds the nodes of scripts/cluster; this cluster has its own"
    ),
]

PROBE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "registry.local/moothall:dev",
                "command": ["sleep", "600"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "10Mi"}},
            }
        ],
    },
}
OF_NODES = ("the API server", "the API server by its service", "the kubelet", "the metadata address")
METADATA = "169.254.169.254"
LISTEN = "import socket, sys\nserver = socket.create_server((sys.argv[1], 80))\nwhile True: server.accept()"
TRY = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4); print('through')"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def probes(installed: None) -> AsyncIterator[dict[str, str]]:  # noqa: F811 - the fixture
    """A pod among the workspaces, one that no policy holds, and another workspace; by name, their namespace."""
    where = {"held": "moothall-workspaces", "other": "moothall-workspaces", "free": "default"}
    for name, namespace in where.items():
        pod = PROBE | {"metadata": {"name": name, "namespace": namespace}}
        await ask("apply", "-f", "-", given=json.dumps(pod))
    for name, namespace in where.items():
        await ask("-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    yield where
    for name, namespace in where.items():
        await ask("-n", namespace, "delete", "pod", name, "--wait=false")


async def address(name: str, namespace: str) -> str:
    return (await ask("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")).strip()


async def reaches(probe: str, namespace: str, host: str, port: int) -> bool:
    said = await ask("-n", namespace, "exec", probe, "--", "python", "-c", TRY, host, str(port), check=False)
    return "through" in said


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def listeners(probes: dict[str, str]) -> AsyncIterator[dict[str, tuple[str, int]]]:
    """What is tried, by name; somebody listens at each of them."""
    here = nodes(Home.of_user())
    into = [("nsenter", "-t", str(node.anchor()), "-n", "--") for node in here]
    for one in into:
        await (await asyncio.create_subprocess_exec(*one, "ip", "addr", "replace", f"{METADATA}/32", "dev", "lo")).wait()
    metadata = [await asyncio.create_subprocess_exec(*one, sys.executable, "-c", LISTEN, METADATA) for one in into]
    serve = ("exec", "other", "--", "python", "-m", "http.server", "8000")
    other = await asyncio.create_subprocess_exec("kubectl", "-n", probes["other"], *serve, stderr=asyncio.subprocess.DEVNULL)
    yield {
        "the bus": ("nats.moothall", 4222),
        "the API server": (FIRST, 6443),
        "the API server by its service": ("10.96.0.1", 443),
        "the kubelet": (here[0].address, 10250),
        "the metadata address": (METADATA, 80),
        "another workspace": (await address("other", probes["other"]), 8000),
        "a server of the bus among themselves": ("nats-0.nats.moothall", 6222),
    }
    for process in (*metadata, other):
        process.terminate()
        await process.wait()
    for one in into:
        await (await asyncio.create_subprocess_exec(*one, "ip", "addr", "del", f"{METADATA}/32", "dev", "lo")).wait()


async def test_a_workspace_reaches_the_bus_and_nothing_else(
    probes: dict[str, str], listeners: dict[str, tuple[str, int]], api: client.ApiClient
) -> None:
    for what, (host, port) in listeners.items():  # nobody holds the cluster to its policies yet
        assert await reaches("held", probes["held"], host, port), f"nobody answers as {what}"
    with enforced(api, Home.of_user()):
        await asyncio.sleep(1)
        for what, (host, port) in listeners.items():
            through = await reaches("held", probes["held"], host, port)
            assert through == (what == "the bus"), what
        for what in OF_NODES:
            assert await reaches("free", probes["free"], *listeners[what]), f"{what}: refused to everybody"
