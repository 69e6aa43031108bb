from __future__ import annotations

from typing import Any

import pytest

from moothall.workspace.kubernetes import cluster


def container(**state: Any) -> dict[str, Any]:
    return {
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "hands", "image": "work:1", "state": state}],
        }
    }


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (
            {
                "status": {
                    "phase": "Failed",
                    "reason": "Evicted",
                    "message": "low on ephemeral-storage",
                }
            },
            "Evicted: low on",
        ),
        (
            container(waiting={"reason": "ErrImagePull", "message": "not found"}),
            "'work:1' of hands cannot be pulled: not found",
        ),
        (container(waiting={"reason": "ImagePullBackOff"}), "cannot be pulled: ImagePullBackOff"),
        (
            container(waiting={"reason": "CreateContainerConfigError", "message": "no secret"}),
            "cannot be started: no secret",
        ),
        (container(terminated={"reason": "OOMKilled", "exitCode": 137}), "sandbox.memory_bytes"),
        (container(terminated={"reason": "Error", "exitCode": 1}), "hands ended with 1: Error"),
        ({"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Running"}}, "deleted"),
    ],
)
def test_a_pod_that_cannot_start_is_reported_with_the_reason(
    pod: dict[str, Any], words: str
) -> None:
    assert words in cluster.pod_failure(pod)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"status": {}},
        container(waiting={"reason": "ContainerCreating"}),
        container(running={"startedAt": "now"}),
    ],
)
def test_a_pod_that_may_still_start_is_not_a_failure(pod: dict[str, Any]) -> None:
    assert cluster.pod_failure(pod) == ""


def test_the_reason_for_a_waiting_pod_or_a_missing_pod_is_reported() -> None:
    waiting = {
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "message": "0/2 nodes: Insufficient cpu",
                }
            ]
        }
    }
    assert cluster.pod_waiting_reason(waiting) == "no node accepts it: 0/2 nodes: Insufficient cpu"
    assert (
        cluster.pod_waiting_reason(
            {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
        )
        == ""
    )
    event = {"message": 'pods "x" is forbidden: exceeded quota: jobs'}
    assert cluster.event_failure(event).startswith("the cluster refuses its pod: pods")
    evicted = {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds 200M"}
    assert (
        cluster.event_failure(evicted)
        == "its pod was ended: Evicted: Pod ephemeral local storage usage exceeds 200M"
    )
