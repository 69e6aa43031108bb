"""Every role is replaced while callers call: no call is lost, and each deliberation is decided once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from k8s.roles.conftest import Arrived
from k8s.roles.standing import WHO, Standing

from moothall.domain.event import EventType
from moothall.domain.topic import Channel
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.kube import house
from support.kube.ctl import ask
from support.kube.programs import Home
from support.kube.stood import DEPLOYMENTS, rolled_out

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def deliberate(standing: Standing, task_id: str) -> pb.DeliberateResponse:
    """Ask for an answer in words; by the wire's rules what is UNAVAILABLE may be asked again once."""
    request = pb.DeliberateRequest(task_description="HAIKU about a hall", role="DEV", num_agents=1, task_id=task_id)
    async with standing.stub() as stub:
        try:
            answer: pb.DeliberateResponse = await stub.Deliberate(request, metadata=WHO, timeout=120)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            answer = await stub.Deliberate(request, metadata=WHO, timeout=120, wait_for_ready=True)
    return answer


@asynccontextmanager
async def called(standing: Standing, name: str) -> AsyncIterator[None]:
    """Have two callers call until the block ends; then each call was answered and decided once."""
    going, asked = True, list[str]()

    async def caller(who: str) -> None:
        while going:
            asked.append(task_id := f"{name}-{who}-{len(asked)}")
            answer = await deliberate(standing, task_id)
            assert (answer.task_id, answer.status) == (task_id, pb.DELIBERATION_STATUS_COMPLETED), answer

    async with asyncio.TaskGroup() as group:
        for who in ("a", "b"):
            group.create_task(caller(who))
        yield
        going = False
    assert len(asked) > len(DEPLOYMENTS)
    for task_id in asked:
        topic = (Channel.RESPONSES.of(task_id),)
        ends = [one async for one in standing.bus.replay(topic) if one.event.type is EventType.DELIBERATION_DECIDED]
        assert len(ends) == 1, task_id


async def test_each_role_is_restarted_under_load_and_no_call_is_lost(standing: Standing) -> None:
    async with called(standing, "restart"):
        for name in DEPLOYMENTS:
            await ask("-n", house.SPACE, "rollout", "restart", f"deployment/moothall-{name}")
            await rolled_out(f"deployment/moothall-{name}")


async def test_an_upgrade_of_all_roles_at_once_loses_no_call(
    standing: Standing, home: Home, counted: tuple[str, Arrived]
) -> None:
    async with called(standing, "upgrade"):
        said = house.values(counted[0], MOOTHALL_LOG__LEVEL="warning")
        await asyncio.to_thread(house.install, home, said)
        await rolled_out(*(f"deployment/moothall-{name}" for name in DEPLOYMENTS))
