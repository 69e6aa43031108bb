"""The report of `moothall doctor` about a cluster, with a fake API server and the real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moothall.app.workspaces import examine_jobs, examine_kubernetes
from moothall.config import BusSettings, JobSettings, Settings, WorkspaceSettings
from moothall.domain.status import Finding
from support.kube.api import SPACE, KubeApi, kube_api


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    with kube_api(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def cluster_settings(folder: Path, **jobs: Any) -> Settings:
    job_settings = {"image": "work:1", "link_image": "moothall:1", **jobs}
    return Settings(
        data_dir=folder / "data",
        bus=BusSettings(url="nats://127.0.0.1:9"),
        workspace=WorkspaceSettings(kind="kubernetes"),
        jobs=JobSettings(**job_settings),
    )


async def examine(api: KubeApi, tmp_path: Path, **jobs: Any) -> dict[str, Finding]:
    return {
        finding.part: finding async for finding in examine_jobs(cluster_settings(tmp_path, **jobs))
    }


async def test_a_cluster_suitable_for_workspaces_passes_every_check(
    api: KubeApi, tmp_path: Path
) -> None:
    api.quotas = [
        {
            "status": {
                "hard": {"pods": "64", "requests.memory": "64Gi"},
                "used": {"pods": "3", "requests.memory": "1Gi"},
            }
        }
    ]
    findings = await examine(api, tmp_path, tolerations=({"key": "work", "operator": "Exists"},))
    assert all(finding.ok for finding in findings.values()), findings
    assert list(findings) == ["cluster", "cluster rights", "cluster quota", "cluster job"]
    assert findings["cluster"].detail == f"Kubernetes v1.34.1 at {api.address}"
    assert findings["cluster quota"].detail == "pods 3 of 64, requests.memory 1Gi of 64Gi"
    (job,) = api.dry
    pod = job["spec"]["template"]["spec"]
    assert [container["image"] for container in pod["containers"]] == [
        "moothall:1",
        "work:1",
        "work:1",
    ], "the real one is tried"
    assert pod["tolerations"] == [{"key": "work", "operator": "Exists"}]
    assert api.jobs == {}, "and not kept"


async def test_missing_permissions_are_named(api: KubeApi, tmp_path: Path) -> None:
    api.denied = {("delete", "jobs"), ("watch", "events"), ("list", "resourcequotas")}
    findings = await examine(api, tmp_path)
    assert findings["cluster rights"].detail == f"missing in {SPACE}: delete jobs, watch events"
    assert "rbac.yaml" in findings["cluster rights"].mend
    assert findings["cluster quota"].ok, "reading it is optional"
    assert "resourcequotas is forbidden" in findings["cluster quota"].detail


@pytest.mark.parametrize(
    ("hard", "used", "full"),
    [
        ({"pods": "7"}, {"pods": "7"}, "pods 7 of 7"),
        ({"count/jobs.batch": "1"}, {"count/jobs.batch": "1"}, "count/jobs.batch 1 of 1"),
        ({"cpu": "300m"}, {"cpu": "200m"}, "cpu 200m of 300m"),
        ({"limits.memory": "1Gi"}, {}, "limits.memory 0 of 1Gi"),
        ({"requests.nvidia.com/gpu": "0", "pods": "1"}, {}, ""),
    ],
)
async def test_a_quota_too_small_for_another_workspace_is_reported(
    hard: dict[str, str], used: dict[str, str], full: str, api: KubeApi, tmp_path: Path
) -> None:
    api.quotas = [{"status": {"hard": hard, "used": used}}]
    quota = (await examine(api, tmp_path))["cluster quota"]
    assert quota.ok == (not full)
    assert not full or quota.detail == f"too low for another workspace: {full}"


async def test_a_rejected_or_warned_job_is_reported_with_the_reason(
    api: KubeApi, tmp_path: Path
) -> None:
    api.invalid = (
        'Job.batch "x" is invalid: spec.template.spec.tolerations[0].operator: Unsupported value: '
        '"Sometimes"'
    )
    refused = (await examine(api, tmp_path))["cluster job"]
    assert "Unsupported value" in refused.detail
    api.invalid, api.warning = "", "would violate PodSecurity"
    assert "would violate PodSecurity" in (await examine(api, tmp_path))["cluster job"].detail
    invalid = (await examine(api, tmp_path, tolerations=({"key": 5},)))["cluster job"]
    assert "tolerations.0.key" in invalid.detail, "reported without a request to the API server"
    unknown_namespace = (await examine(api, tmp_path, namespace="nowhere"))["cluster job"]
    assert "namespaces 'nowhere' not found" in unknown_namespace.detail
    assert "the namespace nowhere" in unknown_namespace.mend


async def test_a_missing_cluster_is_the_only_message(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").write_text("{}", encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setenv("KUBECONFIG", str(tmp_path / "none"))
        (only_finding,) = [finding async for finding in examine_jobs(cluster_settings(tmp_path))]
    assert "no cluster is configured" in only_finding.detail
    assert "KUBECONFIG" in only_finding.mend
    api.kubeconfig.write_text(api.kubeconfig.read_text().replace(api.address, "http://127.0.0.1:9"))
    (only_finding,) = (await examine(api, tmp_path)).values()
    assert not only_finding.ok
    assert "127.0.0.1:9" in only_finding.detail


async def test_invalid_link_keys_are_reported(api: KubeApi, tmp_path: Path) -> None:
    (finding,) = (await examine(api, tmp_path, link_keys="{}")).values()
    assert "moothall bus keys" in finding.detail


async def test_the_doctor_needs_no_local_isolation_and_explains_a_failing_workspace(
    api: KubeApi, tmp_path: Path
) -> None:
    findings = [finding async for finding in examine_kubernetes(cluster_settings(tmp_path))]
    assert [finding.part for finding in findings] == [
        "cluster",
        "cluster rights",
        "cluster quota",
        "cluster job",
        "workspace job",
    ]
    assert [finding.ok for finding in findings] == [True, True, True, True, False]
    assert "127.0.0.1:9" in findings[-1].detail, "the bus is away, and is named"
    api.denied = {("create", "jobs")}
    findings = [finding async for finding in examine_kubernetes(cluster_settings(tmp_path))]
    assert "workspace job" not in [finding.part for finding in findings], (
        "it would repeat the same finding"
    )
