"""NetworkPolicies of deploy/k8s, applied by the tests' enforcer.

Attempts of a workspace's pod are refused. The same attempts of a pod without a policy succeed;
otherwise a refusal would prove nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kubernetes import client

from moothall.events.nats.accounts import mint
from support.kube.ctl import ask
from support.kube.node import FIRST, nodes
from support.kube.policies import enforce_policies
from support.kube.probes import METADATA, address, listening, probe, reaches, running_pods
from support.kube.programs import Home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        not nodes(Home.of_user()),
        reason="the enforcer holds the nodes of scripts/cluster; this cluster has its own",
    ),
]

HELD = ("moothall", "moothall-workspaces")
"""Namespaces whose policies are enforced."""
OF_NODES = (
    "the API server",
    "the API server by its service",
    "the kubelet",
    "the metadata address",
)
# Subscribes to some subjects with the given credentials, publishes on another one, and prints the
# result.
SAY = """
import asyncio, sys
from nats.aio.client import Client, RawCredentials
async def main():
    credentials, (published, *subscribed) = sys.stdin.read(), sys.argv[1:]
    async def wrong(problem): print(problem, flush=True)
    async def came(message): print("heard", message.subject, flush=True)
    client = Client()
    await client.connect("nats://nats.moothall:4222", user_credentials=RawCredentials(credentials), error_cb=wrong, allow_reconnect=False, connect_timeout=10)
    for each in subscribed: await client.subscribe(each, cb=came)
    await client.flush()
    if published != "-": await client.publish(published, b"x")
    await client.flush()
    await asyncio.sleep(1)
    await client.close()
asyncio.run(main())
"""  # noqa: E501 - a line of embedded text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def probes(installed: dict[str, Path]) -> AsyncIterator[dict[str, str]]:
    """Pods by name, each with its namespace: a workspace, another workspace that answers, a pod
    without a policy, and one of the server's.
    """
    namespaces = {
        "held": "moothall-workspaces",
        "other": "moothall-workspaces",
        "free": "default",
        "house": "moothall",
    }
    pods = [
        probe(name, namespace, {}, *((8000,) if name == "other" else ()))
        for name, namespace in namespaces.items()
    ]
    async with running_pods(*pods):
        yield namespaces


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def listeners(probes: dict[str, str]) -> AsyncIterator[dict[str, tuple[str, int]]]:
    """The targets by name, each with a listener."""
    async with listening(METADATA, 80):
        yield {
            "the bus": ("nats.moothall", 4222),
            "the API server": (FIRST, 6443),
            "the API server by its service": ("10.96.0.1", 443),
            "the kubelet": (FIRST, 10250),
            "the metadata address": (METADATA, 80),
            "another workspace": (await address("other", probes["other"]), 8000),
            "a server of the bus among themselves": ("nats-0.nats.moothall", 6222),
        }


async def test_a_workspace_reaches_the_bus_and_nothing_else(
    probes: dict[str, str], listeners: dict[str, tuple[str, int]], api: client.ApiClient
) -> None:
    for target, (host, port) in listeners.items():  # no policy is enforced yet
        assert await reaches("held", probes["held"], host, port), f"nobody answers as {target}"
    with enforce_policies(api, Home.of_user(), *HELD):
        await asyncio.sleep(1)
        for target, (host, port) in listeners.items():
            is_reached = await reaches("held", probes["held"], host, port)
            assert is_reached == (target == "the bus"), target
        for target in OF_NODES:
            assert await reaches("free", probes["free"], *listeners[target]), (
                f"{target}: refused for every pod"
            )


async def publish_from(
    pod: str, namespace: str, credentials: str, subject: str, *subscriptions: str
) -> str:
    """Publish from a pod; return the server's response and the messages on the subscribed
    subjects.
    """
    return await ask(
        "-n",
        namespace,
        "exec",
        "-i",
        pod,
        "--",
        "python",
        "-c",
        SAY,
        subject,
        *subscriptions,
        stdin=credentials,
    )


async def test_a_workspace_neither_publishes_nor_receives_on_subjects_of_others(
    installed: dict[str, Path],
    probes: dict[str, str],
    api: client.ApiClient,
) -> None:
    links = await asyncio.to_thread(installed["links.json"].read_text, encoding="utf-8")
    services = await asyncio.to_thread(installed["services.creds"].read_text, encoding="utf-8")
    token = mint(links, "one", 300)
    with enforce_policies(api, Home.of_user(), *HELD):
        await asyncio.sleep(1)
        for subject, credentials, pod, refused in (
            ("workspace.link.two-out", token, "held", True),
            ("workspace.link.one-out", token, "held", False),
        ):
            output = await publish_from(pod, probes[pod], credentials, subject)
            assert ("permissions violation for publish" in output.lower()) == refused, (
                subject,
                pod,
                output,
            )
        output = await publish_from("held", probes["held"], token, "-", "workspace.link.two-in")
        assert "permissions violation for subscription" in output.lower(), output
        assert not await reaches("free", probes["free"], "nats.moothall", 4222), (
            "refused with any credentials"
        )
        output = await publish_from(
            "house", probes["house"], services, "workspace.link.two-out", "workspace.link.*"
        )
        assert "heard workspace.link.two-out" in output, "an accepted message did not arrive"
