"""The house by role, installed once in a throw-away cluster by its chart, with a scripted model that counts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from k8s.conftest import ask
from k8s.roles.standing import Standing
from k8s.test_deploy import SAMPLE
from kubernetes import client

from house import WRONG, by_task, scripted, turn
from moothall.bus.nats.jetstream import open_bus
from moothall.config import Bus
from moothall.testing.model import Fault, call_id_of, phase_of, scripted_model, seat_of
from support import gobuilt
from support.kube import house, neo4j
from support.kube.node import nodes
from support.kube.programs import Home, Missing

_SECONDS_A_TURN = 2.0  # so that there is a middle in which something is killed
DEPLOYMENTS = ("api", "collector", "tools", "hosts")
Arrived = list[tuple[str, float]]


@pytest.fixture(scope="session")
def home() -> Home:
    found = Home.of_user()
    if not nodes(found):
        pytest.skip("processes in pods are killed from outside, in scripts/cluster; this cluster has nodes of its own")
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def counted() -> AsyncIterator[tuple[str, Arrived]]:
    """The URL of a model server that the pods reach, and what it was asked when."""
    arrived: Arrived = []
    council = scripted(by_task)

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        arrived.append((call_id_of(headers), time.time()))
        if phase_of(headers) == "propose" and "HAIKU" not in str(body):
            await asyncio.sleep(_SECONDS_A_TURN)
            if not seat_of(headers).endswith(
                "3"
            ):  # one is right: who wins is no matter of evidence that a busy machine leaves out
                return turn("files.append", path="src/utils.py", content=WRONG)
        said: Any = council(body, headers)
        return await said  # type: ignore[no-any-return]

    async with scripted_model(answer, host=os.environ["CLUSTER_ADDRESS"]) as server:
        yield server.base_url, arrived


async def rolled_out(*names: str) -> None:
    """Wait for Deployments and StatefulSets; what their pods say where they do not come."""
    for name in names:
        try:
            await ask("-n", house.SPACE, "rollout", "status", name, "--timeout=240s")
        except AssertionError as error:
            seen = await ask("-n", house.SPACE, "get", "pods,events", "-o", "wide")
            logs = await ask("-n", house.SPACE, "logs", name, "--all-containers", "--tail=40", check=False)
            pytest.fail(f"{error}\n{seen[-6000:]}\n{logs[-4000:]}")


async def cleared(home: Home) -> None:
    """Take all of the house away, whatever there is of it."""
    await asyncio.to_thread(house.uninstall, home)
    await ask("delete", "namespace", house.SPACE, house.WORKSPACES, "--ignore-not-found", "--timeout=120s")
    await ask("delete", "pv", *(f"{house.SPACE}-{name}" for name in house.CLAIMS), "--ignore-not-found", "--timeout=60s")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def keys(
    home: Home, counted: tuple[str, Arrived], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Path, house.Folders]]:
    """The house, installed and ready: the folder of its keys, and its volumes."""
    said: list[str] = []
    folder, folders = tmp_path_factory.mktemp("house"), house.Folders(home.run / "volumes")
    await cleared(home)
    try:
        await asyncio.to_thread(neo4j.make, home, said.append)
        for node in nodes(home):
            await asyncio.to_thread(node.give_images, said.append)
        await asyncio.to_thread(folders.make)
        await ask("apply", "-f", "-", given=house.objects(home, folders, folder))
        await asyncio.to_thread(house.install, home, house.values(counted[0]))
        await rolled_out("statefulset/nats", "statefulset/neo4j", *(f"deployment/moothall-{name}" for name in DEPLOYMENTS))
        yield folder, folders
    except (gobuilt.Missing, Missing) as missing:
        pytest.fail(str(missing))
    finally:
        await cleared(home)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def standing(
    home: Home, api: client.ApiClient, counted: tuple[str, Arrived], keys: tuple[Path, house.Folders]
) -> AsyncIterator[Standing]:
    """All roles on three bus servers and a Neo4j, and a repository that they share."""
    folder, folders = keys
    door = await ask("-n", house.SPACE, "get", "service", "moothall", "-o", "jsonpath={.spec.clusterIP}")
    first = await ask("-n", house.SPACE, "get", "pod", "nats-0", "-o", "jsonpath={.status.podIP}")
    inside = ("-n", house.SPACE, "exec", "deploy/moothall-api", "--")
    await ask(*inside, "python", "-c", SAMPLE, "/data/sample")
    await ask(*inside, "moothall", "repo", "add", "/data/sample", "--id", "sample")
    settings = Bus(replicas=3, credentials_file=folder / "bus/services.creds")
    async with open_bus(settings, f"nats://{first.strip()}:4222") as bus:
        authority = (home.keys / "ca.crt").read_bytes()
        yield Standing(api, bus, folders, f"{door.strip()}:50055", authority, counted[1], "sample")
