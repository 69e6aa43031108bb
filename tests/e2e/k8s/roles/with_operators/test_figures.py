"""The same deployment beside the metrics server: HorizontalPodAutoscalers read metrics and add
pods.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio
from k8s.roles.conftest import Counted
from k8s.roles.role_deployment import RoleDeployment
from k8s.roles.test_rolling import concurrent_callers

from support import gobuilt
from support.kube import deployment
from support.kube.addons import METRICS
from support.kube.ctl import ask
from support.kube.programs import Home, Missing
from support.kube.stood import apply_kustomization, give_images, wait_for_rollout

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

SECONDS = 240.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def metrics_server(role_deployment: RoleDeployment, home: Home) -> None:
    """The metrics server, which reports the resource usage of pods."""
    try:
        await asyncio.to_thread(METRICS.make, home, print)
        await give_images(home)
        await apply_kustomization(await asyncio.to_thread(METRICS.applied, home))
    except (gobuilt.Missing, Missing) as missing:
        pytest.fail(str(missing))
    await ask(
        "-n", "kube-system", "rollout", "status", "deployment/metrics-server", "--timeout=180s"
    )
    await ask(
        "wait", "apiservice/v1beta1.metrics.k8s.io", "--for=condition=Available", "--timeout=120s"
    )


async def scaler(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        await ask("-n", deployment.SPACE, "get", "hpa", f"moothall-{name}", "-o", "json")
    )
    return document


def reported_usage(scaler_document: dict[str, Any]) -> str:
    """Return the reported mean usage of a pod; '' if it is unknown."""
    metrics = scaler_document["status"].get("currentMetrics") or [{}]
    return str(((metrics[0].get("resource") or {}).get("current") or {}).get("averageValue", ""))


@pytest.mark.parametrize("name", ["api", "collector"])
async def test_an_autoscaler_reads_the_metrics_of_its_pods(name: str, metrics_server: None) -> None:
    async with asyncio.timeout(SECONDS):
        while not reported_usage(document := await scaler(name)):
            await asyncio.sleep(2)
    conditions = {
        condition["type"]: condition["status"] for condition in document["status"]["conditions"]
    }
    assert conditions["ScalingActive"] == "True", document["status"]
    assert document["status"]["currentReplicas"] == 2


async def test_overloaded_apis_are_scaled_up_and_no_call_is_lost(
    role_deployment: RoleDeployment, home: Home, counted: Counted, metrics_server: None
) -> None:
    values = deployment.values(counted.url)
    values["roles"]["cpu"] = "5m"
    async with concurrent_callers(role_deployment, "scaled"):
        await asyncio.to_thread(deployment.install, home, values)
        async with asyncio.timeout(SECONDS):
            while (await scaler("api"))["status"].get("currentReplicas", 0) < 3:
                await asyncio.sleep(2)
        await wait_for_rollout("deployment/moothall-api")
    ready = [
        pod
        for pod in await role_deployment.pods("app.kubernetes.io/component=api")
        if pod.status.phase == "Running"
    ]
    assert len(ready) >= 3
