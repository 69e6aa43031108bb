"""The deployment by role, installed once in a throw-away cluster by its chart, with a scripted
model that counts calls.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from k8s.roles.role_deployment import CouncilResult, RoleDeployment
from k8s.test_deploy import SAMPLE
from kubernetes import client

from command import WRONG, answer_turns_with, by_task, turn
from moothall.testing.model import Fault, call_id_of, phase_of, scripted_model, seat_of
from support import gobuilt
from support.kube import deployment
from support.kube.ctl import ask
from support.kube.node import nodes
from support.kube.programs import Home, Missing
from support.kube.stood import install_deployment

_SECONDS_A_TURN = 2.0  # leaves time to kill something during a turn


@dataclass(slots=True)
class Counted:
    """A model server that pods can reach.

    Attributes:
        arrived: call id and time of each call.
        answers: calls for a turn wait until this event is set.
    """

    url: str
    arrived: list[tuple[str, float]]
    answers: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture(scope="session")
def home() -> Home:
    user_home = Home.of_user()
    if not nodes(user_home):
        pytest.skip(
            "the tests kill processes in pods from outside, which requires the nodes of "
            "scripts/cluster"
        )
    return user_home


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def counted() -> AsyncIterator[Counted]:
    """The model server of the deployment."""
    counter = Counted("", [])
    counter.answers.set()
    council = answer_turns_with(by_task)

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        counter.arrived.append((call_id_of(headers), time.time()))
        if phase_of(headers) == "propose" and "HAIKU" not in str(body):
            await asyncio.sleep(_SECONDS_A_TURN)
            await counter.answers.wait()
            # One is right, so the winner does not depend on evidence that a busy machine skips.
            if not seat_of(headers).endswith("3"):
                return turn("files.append", path="src/utils.py", content=WRONG)
        reply: Any = council(body, headers)
        return await reply  # type: ignore[no-any-return]

    async with scripted_model(answer, host=os.environ["CLUSTER_ADDRESS"]) as server:
        counter.url = server.base_url
        yield counter


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def keys(
    home: Home, counted: Counted, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Path, deployment.Folders]]:
    """The installed and ready deployment: the folder of its keys, and its volumes."""
    folder = tmp_path_factory.mktemp("deployment")
    try:
        async with install_deployment(home, folder, deployment.values(counted.url)) as folders:
            yield folder, folders
    except (gobuilt.Missing, Missing) as missing:
        pytest.fail(str(missing))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def role_deployment(
    home: Home, api: client.ApiClient, counted: Counted, keys: tuple[Path, deployment.Folders]
) -> AsyncIterator[RoleDeployment]:
    """All roles on three bus servers and a Neo4j, and a repository that they share."""
    folder, folders = keys
    in_api_pod = ("-n", deployment.SPACE, "exec", "deploy/moothall-api", "--")
    await ask(*in_api_pod, "python", "-c", SAMPLE, "/data/sample")
    await ask(*in_api_pod, "moothall", "repo", "add", "/data/sample", "--id", "sample")
    authority = (home.keys / "ca.crt").read_bytes()
    deployed = RoleDeployment(
        api, folders, folder / "bus/services.creds", authority, counted.arrived, "sample"
    )
    await deployed.connect()
    yield deployed
    await deployed.disconnect()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def undisturbed(role_deployment: RoleDeployment) -> CouncilResult:
    """The outcome of a council in which nothing is killed."""
    result = await role_deployment.council("undisturbed")
    assert result.end.proven
    assert "def hello_world():" in result.end.delivered
    assert await role_deployment.leftovers() == []
    return result
