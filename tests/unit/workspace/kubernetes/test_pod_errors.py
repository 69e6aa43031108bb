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
def test_a_pod_that_will_never_answer_says_why(pod: dict[str, Any], words: str) -> None:
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
def test_one_that_may_yet_come_says_nothing(pod: dict[str, Any]) -> None:
    assert cluster.pod_failure(pod) == ""


def test_what_a_pod_waits_for_and_why_a_job_gets_none() -> None:
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
    assert cluster.pod_waiting_reason(waiting) == "no node takes it: 0/2 nodes: Insufficient cpu"
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
