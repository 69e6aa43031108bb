"""Every role is replaced while callers call and a council works in its Jobs: no call is lost, each
deliberation is decided once, and the council has the same outcome as undisturbed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from k8s.roles.conftest import Counted
from k8s.roles.role_deployment import WHO, CouncilResult, RoleDeployment

from moothall.domain.event import Channel, EventType
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.kube import deployment, older_images
from support.kube.ctl import ask
from support.kube.programs import Home, Missing
from support.kube.stood import DEPLOYMENTS, wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

SEATS = 3
_PAUSE = 0.25  # per caller; in total a few deliberations per second


async def deliberate(role_deployment: RoleDeployment, task_id: str) -> pb.DeliberateResponse:
    """Request an answer in text; retry once on UNAVAILABLE, as the API allows."""
    request = pb.DeliberateRequest(
        task_description="HAIKU about a hall", role="DEV", num_agents=1, task_id=task_id
    )
    async with role_deployment.stub() as stub:
        try:
            answer: pb.DeliberateResponse = await stub.Deliberate(
                request, metadata=WHO, timeout=120
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            answer = await stub.Deliberate(request, metadata=WHO, timeout=120, wait_for_ready=True)
    return answer


@asynccontextmanager
async def concurrent_callers(role_deployment: RoleDeployment, name: str) -> AsyncIterator[None]:
    """Let two callers call until the block ends, then assert that each call was answered and
    decided once.
    """
    going, task_ids = True, list[str]()

    async def caller(caller_name: str) -> None:
        while going:
            task_ids.append(task_id := f"{name}-{caller_name}-{len(task_ids)}")
            answer = await deliberate(role_deployment, task_id)
            assert (answer.task_id, answer.status) == (task_id, pb.DELIBERATION_STATUS_COMPLETED), (
                answer
            )
            await asyncio.sleep(_PAUSE)

    async with asyncio.TaskGroup() as group:
        for caller_name in ("a", "b"):
            group.create_task(caller(caller_name))
        yield
        going = False
    assert len(task_ids) > len(DEPLOYMENTS)
    for task_id in task_ids:
        topic = (Channel.RESPONSES.of(task_id),)
        ends = [
            recorded
            async for recorded in role_deployment.bus.replay(topic)
            if recorded.event.type is EventType.DELIBERATION_DECIDED
        ]
        assert len(ends) == 1, task_id


async def test_an_upgrade_of_all_roles_at_once_loses_no_call(
    role_deployment: RoleDeployment, home: Home, counted: Counted
) -> None:
    async with concurrent_callers(role_deployment, "upgrade"):
        values = deployment.values(counted.url, MOOTHALL_LOG__LEVEL="warning")
        await asyncio.to_thread(deployment.install, home, values)
        await wait_for_rollout(*(f"deployment/moothall-{name}" for name in DEPLOYMENTS))


async def wait_for_pods(role_deployment: RoleDeployment, pods: int) -> set[str]:
    """Wait until this many workspace pods run; return their ids."""
    async with asyncio.timeout(180):
        while True:
            pod_names = {
                pod.metadata.uid
                for pod in await role_deployment.pods("", deployment.WORKSPACES)
                if pod.status.phase == "Running"
            }
            if len(pod_names) >= pods:
                return pod_names
            await asyncio.sleep(0.5)


async def serving(role_deployment: RoleDeployment) -> set[str]:
    return {
        pod.metadata.uid for pod in await role_deployment.pods("app.kubernetes.io/name=moothall")
    }


async def replace_during_council(
    name: str,
    role_deployment: RoleDeployment,
    counted: Counted,
    replace: Callable[[], Coroutine[Any, Any, None]],
) -> CouncilResult:
    """Hold a council whose seats wait for their model in their Jobs until the whole deployment was
    replaced; return its outcome.
    """

    async def replace_all() -> int:
        try:
            await wait_for_pods(role_deployment, SEATS)
            old = await serving(role_deployment)
            await replace()
            async with asyncio.timeout(120):
                # Every pod of every role was replaced.
                while not old.isdisjoint(await serving(role_deployment)):
                    await asyncio.sleep(0.5)
            await wait_for_pods(role_deployment, SEATS)
        finally:
            counted.answers.set()
        return len(old)

    counted.answers.clear()
    return await role_deployment.council(name, replace_all, EventType.DELIBERATION_STARTED)


async def test_replacing_each_role_under_load_does_not_change_a_councils_outcome(
    role_deployment: RoleDeployment, counted: Counted, undisturbed: CouncilResult
) -> None:
    async def restart() -> None:
        for name in DEPLOYMENTS:
            await ask("-n", deployment.SPACE, "rollout", "restart", f"deployment/moothall-{name}")
            await wait_for_rollout(f"deployment/moothall-{name}")

    async with concurrent_callers(role_deployment, "restart"):
        result = await replace_during_council("rolled", role_deployment, counted, restart)
    assert undisturbed.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    assert await role_deployment.leftovers() == []


async def test_an_upgrade_from_an_older_version_does_not_change_a_councils_outcome(
    role_deployment: RoleDeployment, home: Home, counted: Counted, undisturbed: CouncilResult
) -> None:
    try:
        await asyncio.to_thread(older_images.give, home, print)
    except Missing as missing:
        pytest.fail(str(missing))

    new_credentials = json.loads(
        await ask("-n", deployment.SPACE, "get", "secret", "moothall-bus", "-o", "json")
    )["data"]

    async def give(credentials: Mapping[str, str]) -> None:
        patch = json.dumps({"data": credentials})
        await ask(
            "-n", deployment.SPACE, "patch", "secret", "moothall-bus", "--type=merge", "-p", patch
        )

    async def upgrade() -> None:
        await give(new_credentials)
        await asyncio.to_thread(deployment.install, home, deployment.values(counted.url))
        await wait_for_rollout(*(f"deployment/moothall-{name}" for name in DEPLOYMENTS))

    older = deployment.values(counted.url)
    older["images"] |= {
        "moothall": f"registry.local/moothall:{older_images.TAG}",
        "workspace": f"registry.local/moothall-workspace:{older_images.TAG}",
    }
    await give(
        {
            name: new_credentials["services.creds"]
            for name in new_credentials
            if name.endswith(".creds")
        }
    )  # initially, all roles had the same
    await asyncio.to_thread(deployment.install, home, older)
    await wait_for_rollout(*(f"deployment/moothall-{name}" for name in DEPLOYMENTS))
    result = await replace_during_council("upgraded-from-before", role_deployment, counted, upgrade)
    assert undisturbed.difference(result) == ""
    assert (result.repeated, result.decisions) == ([], 1)
    assert await role_deployment.leftovers() == []
