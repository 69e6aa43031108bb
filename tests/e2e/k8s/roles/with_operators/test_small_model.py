"""The same deployment with the small local model, with its real weights, as the model server in the
cluster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from k8s.roles.role_deployment import WHO, RoleDeployment

from moothall.config import LlmSettings
from moothall.domain.event import Channel, EventType
from moothall.llm.weights import fetch_weights
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.kube import deployment, small_model
from support.kube.ctl import ask
from support.kube.programs import Home
from support.kube.stood import DEPLOYMENTS, old_pods_gone, wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

TASK = "In one sentence: what does a queue between two services do when it is full?"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small_model_deployment(
    role_deployment: RoleDeployment, home: Home
) -> AsyncIterator[None]:
    """The model's pod, and a deployment that uses it."""
    weights = await fetch_weights(LlmSettings(), home.root, lambda done, total: None)
    await ask("delete", "pv", small_model.VOLUME, "--ignore-not-found", "--timeout=60s")
    await ask("apply", "-f", "-", stdin=small_model.objects(weights))
    await wait_for_rollout(f"deployment/{small_model.NAME}")
    values = deployment.values(
        small_model.URL,
        MOOTHALL_LLM__API_KEY=small_model.KEY,
        MOOTHALL_LLM__CONTEXT_TOKENS=str(small_model.TOKENS),
    )
    await asyncio.to_thread(deployment.install, home, values)
    await wait_for_rollout(*(f"deployment/moothall-{name}" for name in DEPLOYMENTS))
    await old_pods_gone()
    yield
    await ask(
        "-n",
        deployment.SPACE,
        "delete",
        f"deployment/{small_model.NAME}",
        "pvc/weights",
        "--timeout=60s",
    )
    await ask("delete", "pv", small_model.VOLUME, "--timeout=60s")


async def test_the_small_model_answers_a_council(
    role_deployment: RoleDeployment, small_model_deployment: None
) -> None:
    request = pb.DeliberateRequest(
        task_description=TASK, role="DEV", num_agents=2, task_id="on-the-small-model"
    )
    async with role_deployment.stub() as stub:
        answer = await stub.Deliberate(request, metadata=WHO, timeout=600, wait_for_ready=True)
    assert answer.status == pb.DELIBERATION_STATUS_COMPLETED, answer
    assert all(len(result.proposal.content.split()) > 1 for result in answer.results), answer
    topic = (Channel.RESULTS.of("on-the-small-model"),)
    calls = [
        recorded.event.data
        async for recorded in role_deployment.bus.replay(topic)
        if recorded.event.type is EventType.MODEL_CALLED
    ]
    assert {call["model"] for call in calls} == {small_model.NAME}
    assert all(call["answer"] for call in calls)
    sys.stdout.write(
        f"{len(calls)} calls; the proposal of the winner: {answer.results[0].proposal.content}\n"
    )
