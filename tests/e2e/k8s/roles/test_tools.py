"""Tool calls while the role `tools` is replaced: refused as UNAVAILABLE, and answered once the new
process has the lease.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from k8s.roles.role_deployment import WHO, RoleDeployment

from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.tool.v1 import tool_pb2 as pb
from moothall.pb.tool.v1.tool_pb2_grpc import ToolServiceStub
from support.kube.ctl import ask
from support.kube.deployment import SPACE
from support.kube.stood import wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def rpc(role_deployment: RoleDeployment, method: str, request: object) -> Any:
    async with role_deployment.channel("moothall-tools", 50059) as channel:
        return await getattr(ToolServiceStub(channel), method)(request, metadata=WHO, timeout=60)


async def use_workspace(role_deployment: RoleDeployment, request_id: str) -> None:
    """Open a workspace, call a tool and close the workspace."""
    repository = common_pb2.Repository(id=role_deployment.repository)
    opened = await rpc(
        role_deployment, "OpenWorkspace", pb.OpenWorkspaceRequest(repository=repository, role="DEV")
    )
    request = pb.CallToolRequest(
        request_id=request_id,
        workspace_id=opened.workspace_id,
        capability_token=opened.capability_token,
        tool="files.read",
    )
    request.arguments.update({"path": "src/utils.py"})
    answer = await rpc(role_deployment, "CallTool", request)
    assert (answer.status, "def add(a, b):" in answer.output["content"]) == ("success", True), (
        answer
    )
    await rpc(
        role_deployment,
        "CloseWorkspace",
        pb.CloseWorkspaceRequest(workspace_id=opened.workspace_id),
    )


async def test_callers_of_tools_retry_while_the_service_restarts(
    role_deployment: RoleDeployment,
) -> None:
    await use_workspace(role_deployment, "before")
    refused: list[grpc.StatusCode] = []
    await ask("-n", SPACE, "rollout", "restart", "deployment/moothall-tools")
    rolling = asyncio.create_task(wait_for_rollout("deployment/moothall-tools"))
    attempts = 0
    while not rolling.done() or not attempts:
        attempts += 1
        try:
            await use_workspace(role_deployment, f"during-{attempts}")
        except grpc.aio.AioRpcError as error:
            refused.append(error.code())
        await asyncio.sleep(0.2)
    await rolling
    assert refused, "no call was refused while the process was replaced"
    assert set(refused) == {grpc.StatusCode.UNAVAILABLE}, refused
    await use_workspace(role_deployment, "after")
    assert await role_deployment.leftovers() == []
