"""The commands of docs/operating.md for scaling, backup, key rotation and restore, run in a
deployment by role.

Copies of the volumes' folders stand in for snapshots, which this cluster's storage does not
support. cypher-shell is not available, so a driver sends its statement.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from k8s.roles.conftest import Counted
from k8s.roles.role_deployment import WHO, CouncilResult, RoleDeployment

from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.kube import deployment, page
from support.kube.ctl import ask
from support.kube.deployment import CLAIMS, PASSWORD, SPACE
from support.kube.page import by_role
from support.kube.programs import Home
from support.kube.stood import all_rolled_out, old_pods_gone, remove_deployment

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

SECRETS = ("nats-accounts", "moothall-bus", "moothall", "moothall-tls", "neo4j")
KEPT = [name for name in CLAIMS if name != "data-neo4j-0"]  # the graph is rebuilt from the log
LOOKS = (
    ("show", "undisturbed", "--json"),
    ("log", "tail", "--task", "undisturbed", "--json"),
    ("diff", "undisturbed"),
    ("list", "--json"),
)
NEW_TOKEN, NEW_PASSWORD = "another-token-of-the-deployment", "another-password-of-its-graph"
ASK_NEO4J = f"""
import sys
from neo4j import GraphDatabase
from neo4j.exceptions import AuthError
try:
    with GraphDatabase.driver("neo4j://neo4j.{SPACE}:7687", auth=("neo4j", sys.argv[1])) as driver:
        driver.execute_query(sys.argv[2], database_=sys.argv[3])
        print("done")
except AuthError:
    print("refused")
"""


@dataclass(frozen=True, slots=True)
class Copies:
    """A backup of the deployment, and the output of its commands at that time."""

    folder: Path
    secrets: str
    command_outputs: list[str]


async def run_in_api_pod(*command: str, check: bool = True) -> str:
    return await ask(
        "-n", SPACE, "exec", "deploy/moothall-api", "-c", "moothall", "--", *command, check=check
    )


async def command_outputs() -> list[str]:
    return [await run_in_api_pod("moothall", *arguments) for arguments in LOOKS]


async def wait_until_stopped(role_deployment: RoleDeployment) -> None:
    async with asyncio.timeout(120):
        while await role_deployment.pods("app.kubernetes.io/name=moothall"):
            await asyncio.sleep(0.5)


async def current_secrets() -> str:
    """Return the current Secrets, for `kubectl apply` elsewhere."""
    document = json.loads(await ask("-n", SPACE, "get", "secrets", *SECRETS, "-o", "json"))
    for manifest in document["items"]:
        manifest["metadata"] = {name: manifest["metadata"][name] for name in ("name", "namespace")}
    return json.dumps(document)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def copies(
    role_deployment: RoleDeployment,
    undisturbed: CouncilResult,
    tmp_path_factory: pytest.TempPathFactory,
) -> Copies:
    """A deployment that was scaled to zero, copied, and scaled up again, as the page describes."""
    outputs_before, folder = await command_outputs(), tmp_path_factory.mktemp("copies")
    down, *up = page.lines("kubectl -n moothall scale deployment/moothall-")
    await page.run(by_role(down, SPACE))
    await wait_until_stopped(role_deployment)
    for name in KEPT:
        subprocess.run(
            ("cp", "--archive", str(role_deployment.folders.root / name), str(folder)), check=True
        )
    for line in up:
        await page.run(by_role(line, SPACE))
    await all_rolled_out()
    return Copies(folder, await current_secrets(), outputs_before)


async def test_a_server_scaled_to_zero_and_back_is_unchanged(
    role_deployment: RoleDeployment, undisturbed: CouncilResult, copies: Copies
) -> None:
    assert await command_outputs() == copies.command_outputs
    assert undisturbed.difference(await role_deployment.council("scaled")) == ""


async def status(role_deployment: RoleDeployment, token: str) -> grpc.StatusCode:
    """Query the deployment's status with a token; return the gRPC status."""
    async with role_deployment.stub() as stub:
        try:
            metadata = (("authorization", f"Bearer {token}"),)
            await stub.GetStatus(
                pb.GetStatusRequest(), metadata=metadata, timeout=30, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def at_neo4j(password: str, statement: str, database: str) -> str:
    return (await run_in_api_pod("python", "-c", ASK_NEO4J, password, statement, database)).strip()


async def presented_certificate(role_deployment: RoleDeployment) -> str:
    """Return the certificate that the endpoints present."""
    return await asyncio.to_thread(
        ssl.get_server_certificate, (role_deployment.dependencies["moothall"], 8080)
    )


async def test_credentials_are_replaced_as_documented(
    role_deployment: RoleDeployment, home: Home, copies: Copies, tmp_path: Path
) -> None:
    deployment.certificate(home, f"{SPACE}-new")
    for end in ("crt", "key"):
        (tmp_path / f"tls.{end}").write_bytes((home.keys / f"{SPACE}-new.{end}").read_bytes())
    (tmp_path / "ca.crt").write_bytes(role_deployment.authority)
    (tmp_path / "settings.env").write_text(
        f"MOOTHALL_GRPC__TOKEN={NEW_TOKEN}\nMOOTHALL_GRAPH__PASSWORD={NEW_PASSWORD}\n"
    )
    (tmp_path / "neo4j.env").write_text(f"NEO4J_AUTH=neo4j/{NEW_PASSWORD}\n")
    old = WHO[0][1].removeprefix("Bearer ")
    assert await status(role_deployment, NEW_TOKEN) is grpc.StatusCode.UNAUTHENTICATED
    assert await at_neo4j(NEW_PASSWORD, "RETURN 1", "neo4j") == "refused"
    certificate_before = await presented_certificate(role_deployment)

    alter = page.line("ALTER CURRENT USER SET PASSWORD FROM").removesuffix(";")
    statement = alter.replace("'old'", f"'{PASSWORD}'").replace("'new'", f"'{NEW_PASSWORD}'")
    assert await at_neo4j(PASSWORD, statement, "system") == "done"
    for part in ("generic moothall --from-env", "generic moothall-tls ", "generic neo4j "):
        await page.run(by_role(page.line(part), SPACE), tmp_path)
    await page.run(
        by_role(page.line("kubectl -n moothall rollout restart deployment/moothall"), SPACE)
    )
    await all_rolled_out()
    await old_pods_gone()

    assert await status(role_deployment, old) is grpc.StatusCode.UNAUTHENTICATED
    assert await status(role_deployment, NEW_TOKEN) is grpc.StatusCode.OK
    assert await at_neo4j(PASSWORD, "RETURN 1", "neo4j") == "refused"
    assert (
        (await presented_certificate(role_deployment)).strip()
        == (tmp_path / "tls.crt").read_text().strip()
        != certificate_before.strip()
    )
    request = pb.DeliberateRequest(
        task_description="HAIKU about a key", role="DEV", num_agents=1, task_id="later"
    )
    async with role_deployment.stub() as stub:
        answer = await stub.Deliberate(
            request, metadata=(("authorization", f"Bearer {NEW_TOKEN}"),), timeout=120
        )
    assert answer.status == pb.DELIBERATION_STATUS_COMPLETED
    await role_deployment.wait_for_graph()


async def test_a_restored_server_equals_its_backup(
    role_deployment: RoleDeployment,
    home: Home,
    counted: Counted,
    undisturbed: CouncilResult,
    copies: Copies,
) -> None:
    assert "later" in await run_in_api_pod("moothall", "list", "--json"), (
        "data written after the copies is missing"
    )
    await page.run(by_role(page.lines("scale deployment/moothall --replicas=0")[0], SPACE))
    await wait_until_stopped(role_deployment)
    await role_deployment.disconnect()
    await remove_deployment(home)
    await asyncio.to_thread(role_deployment.folders.make)
    assert not any(any((role_deployment.folders.root / name).iterdir()) for name in CLAIMS)

    for name in KEPT:
        subprocess.run(
            (
                "cp",
                "--archive",
                f"{copies.folder / name}/.",
                str(role_deployment.folders.root / name),
            ),
            check=True,
        )
    for manifest in (deployment.places(role_deployment.folders), copies.secrets):
        await ask("apply", "-f", "-", stdin=manifest)
    await asyncio.to_thread(deployment.install, home, deployment.values(counted.url))
    await all_rolled_out()
    await role_deployment.connect()

    assert await command_outputs() == copies.command_outputs, (
        "the restored state differs from the copies"
    )
    await role_deployment.wait_for_graph()  # into an empty graph
    result: Any = await role_deployment.council("brought-back")
    assert undisturbed.difference(result) == ""
    assert await role_deployment.leftovers() == []
