"""The manifests match the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from moothall import __version__
from moothall.cli.deliberate import deliberate
from moothall.events.nats.accounts import create_account_files
from moothall.settings import load_settings
from moothall.telemetry.metrics import REGISTRY

DEPLOY = Path(__file__).parents[2] / "deploy/k8s"
FOLDERS = [
    DEPLOY / "base",
    *sorted((DEPLOY / "overlays").iterdir()),
    *sorted((DEPLOY / "components").iterdir()),
]
KUBERNETES = "1.34"
# Custom kinds: test_chart.py validates these against their definitions.
DEFINED = {"PrometheusRule", "RayCluster", "ServiceMonitor", "VolumeSnapshot"}


def read_documents(path: Path) -> Iterator[Any]:
    # Ten times as fast as the one in Python.
    return yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def documents(folder: Path = DEPLOY / "base") -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        if path.name not in {"kustomization.yaml", *patches(folder)}:
            yield from read_documents(path)


def kustomization(folder: Path) -> dict[str, Any]:
    path = folder / "kustomization.yaml"
    document: dict[str, Any] = next(read_documents(path)) if path.exists() else {}
    return document


def patches(folder: Path) -> set[str]:
    """Return the files of a folder that change other manifests."""
    return {patch["path"] for patch in kustomization(folder).get("patches", ()) if "path" in patch}


def manifest_named(kind: str, name: str) -> dict[str, Any]:
    return next(
        document
        for document in documents()
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_manifest_is_referenced_and_valid_for_kubernetes(folder: Path) -> None:
    named = [
        *(name for name in kustomization(folder)["resources"] if not name.startswith("..")),
        *patches(folder),
    ]
    assert sorted(named) == sorted(
        path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    for document in documents(folder):
        if document["kind"] not in DEFINED and not is_copied(document):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def is_copied(manifest: dict[str, Any]) -> bool:
    """Return whether its pod is copied from another; test_chart.py checks the result."""
    return manifest["kind"] == "Deployment" and not manifest["spec"]["template"]["spec"]


def test_the_examples_are_valid_for_kubernetes_and_use_existing_options() -> None:
    for document in documents(DEPLOY / "examples"):
        if document["kind"] not in DEFINED:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    (job,) = [
        document
        for document in documents(DEPLOY / "examples")
        if document["metadata"].get("generateName") == "deliberation-"
    ]
    pod = job["spec"]["template"]["spec"]
    arguments = [*pod["containers"][0]["command"], *pod["containers"][0]["args"]]
    options = {option for parameter in deliberate.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= options | {"--"}
    assert arguments[-2:] == ["--", "$(TASK)"], "a task that begins with '-' is not an option"


def config_map_of(folder: Path) -> dict[str, str]:
    """Return the ConfigMap of the services after an overlay or a component."""
    parents = [
        name
        for name in kustomization(folder).get("resources", ())
        if name.startswith("../") and name != "../../base"
    ]
    environment = (
        config_map_of((folder / parents[0]).resolve())
        if parents
        else manifest_named("ConfigMap", "moothall")["data"]
    )
    parts = [(folder / name).resolve() for name in kustomization(folder).get("components", ())]
    for patch in (
        patch for part in (*parts, folder) for patch in kustomization(part).get("patches", ())
    ):
        if patch.get("target") == {"kind": "ConfigMap", "name": "moothall"}:
            for change in yaml.safe_load(patch["patch"]):
                key = change["path"].removeprefix("/data/")
                assert (key in environment) == (change["op"] == "replace"), (
                    f"{folder.name}: {change}"
                )
                environment[key] = change["value"]
    return environment


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_configuration_key_is_a_setting(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = config_map_of(folder)
    keys = create_account_files(tmp_path / "keys")
    (bus,) = [
        volume["secret"]
        for volume in manifest_named("Deployment", "moothall")["spec"]["template"]["spec"][
            "volumes"
        ]
        if volume["name"] == "bus"
    ]
    files = {item["path"]: keys[item["key"]] for item in bus["items"]}
    for name, value in environment.items():
        assert isinstance(value, str), f"{name} of a ConfigMap is no text"
        monkeypatch.setenv(name, str(files.get(Path(value).name, value)))
    if "MOOTHALL_GRPC__HOST" in environment:
        monkeypatch.setenv("MOOTHALL_GRPC__TOKEN", "t" * 32)  # of the Secret
    settings = load_settings()
    assert settings.workspace.kind == "kubernetes"
    assert settings.bus.url == environment["MOOTHALL_BUS__URL"]
    assert settings.bus.replicas == manifest_named("StatefulSet", "nats")["spec"]["replicas"]
    assert (
        settings.jobs.namespace
        == manifest_named("ResourceQuota", "workspaces")["metadata"]["namespace"]
    )


def test_the_services_may_create_jobs_in_one_namespace_only() -> None:
    kinds = [document["kind"] for document in documents()]
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds)
    (role,) = [document for document in documents() if document["kind"] == "Role"]
    assert role["metadata"]["namespace"] == "moothall-workspaces"
    allowed = {
        (kind, verb)
        for rule in role["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        *(("jobs", verb) for verb in ("create", "delete", "list", "patch")),
        *((kind, verb) for kind in ("pods", "events") for verb in ("list", "watch")),
        ("resourcequotas", "list"),
    }


def mappings_in(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a document."""
    if isinstance(node, dict):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings_in(item)


def test_every_volume_of_the_log_is_snapshotted_and_restored() -> None:
    claims = {
        document["metadata"]["name"]
        for document in documents(DEPLOY / "examples")
        if document["kind"] == "PersistentVolumeClaim"
    } - {"backups"}
    snapshotted = {
        document["spec"]["source"]["persistentVolumeClaimName"]
        for document in documents(DEPLOY / "examples")
        if document["kind"] == "VolumeSnapshot"
    }
    servers = range(manifest_named("StatefulSet", "nats")["spec"]["replicas"])
    assert claims == snapshotted == {"moothall", *(f"data-nats-{number}" for number in servers)}


def test_both_namespaces_and_every_pod_are_restricted() -> None:
    files = [next(read_documents(folder / name)) for folder in FOLDERS for name in patches(folder)]
    pod_count = 0
    for mapping in mappings_in([[*documents(folder)] for folder in FOLDERS] + files):
        if mapping.get("kind") == "Namespace":
            assert mapping["metadata"]["labels"] == {
                "pod-security.kubernetes.io/enforce": "restricted"
            }
        # A document without an image is a patch.
        if any("image" in container for container in mapping.get("containers", ())):
            assert mapping["securityContext"]["runAsNonRoot"] is True
            assert mapping["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        if "image" in mapping:
            pod_count += 1
            ours = mapping["image"] in {"moothall", "nats"}
            assert mapping["securityContext"] == {
                "allowPrivilegeEscalation": False,
                # Neo4j and vLLM write into their images.
                **({"readOnlyRootFilesystem": True} if ours else {}),
                "capabilities": {"drop": ["ALL"]},
            }
    assert pod_count == 7


def test_pods_that_read_settings_get_no_service_variables() -> None:
    """`MOOTHALL_METRICS_SERVICE_HOST`, set for the Service moothall-metrics, would end it."""
    pods = [
        mapping
        for mapping in mappings_in(
            [[*documents(folder)] for folder in (*FOLDERS, DEPLOY / "examples")]
        )
        if "containers" in mapping
    ]
    ours = [
        pod
        for pod in pods
        if any(container["image"].endswith("moothall") for container in pod["containers"])
    ]
    assert len(ours) == 7
    assert [pod.get("enableServiceLinks") for pod in ours] == [False] * 7


def test_private_files_stay_private_when_a_volume_is_mounted_again() -> None:
    """Otherwise every start makes them readable for the group, and a token that others may read is
    refused.
    """
    pods = [
        mapping
        for mapping in mappings_in([[*documents(folder)] for folder in FOLDERS])
        if "fsGroup" in mapping
    ]
    assert len(pods) == 6
    assert {pod.get("fsGroupChangePolicy") for pod in pods} == {"OnRootMismatch"}


def test_the_ray_version_of_the_hosts_matches_the_images() -> None:
    (cluster,) = [
        document
        for document in documents(DEPLOY / "components/hosts")
        if document["kind"] == "RayCluster"
    ]
    lock = (DEPLOY.parents[1] / "requirements/run.txt").read_text(encoding="utf-8")
    assert f"\nray=={cluster['spec']['rayVersion']} " in lock
    environment = config_map_of(DEPLOY / "components/hosts")
    assert (
        environment["MOOTHALL_RAY__ADDRESS"]
        == f"{cluster['metadata']['name']}-head-svc.moothall:6379"
    )
    assert environment["MOOTHALL_RAY__HOSTS"] == str(
        cluster["spec"]["workerGroupSpecs"][0]["replicas"]
    )
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", (
        "hosts are scheduled on nodes that offer a processor"
    )


def test_the_bus_release_is_the_tested_one() -> None:
    """2.12 limits itself to three quarters of the free space at its start: half full and restarted,
    it refused every write.
    """
    (image,) = [
        entry
        for entry in kustomization(DEPLOY / "overlays/prod")["images"]
        if entry["name"] == "nats"
    ]
    lock = (DEPLOY.parents[1] / "requirements/run.txt").read_text(encoding="utf-8")
    assert f"\nnats-server-bin=={image['newTag']} " in lock


def test_a_node_with_a_host_on_ray_can_be_drained() -> None:
    """`maxUnavailable` is computed from the scale of the pods' owner, which a RayCluster lacks: no
    pod could be evicted.
    """
    cluster, budget, _ = documents(DEPLOY / "components/hosts")
    assert budget["kind"] == "PodDisruptionBudget"
    assert budget["spec"]["minAvailable"] == cluster["spec"]["workerGroupSpecs"][0]["replicas"] - 1
    assert "maxUnavailable" not in budget["spec"]


def test_alerts_use_existing_metrics_and_labels_and_each_has_a_runbook() -> None:
    (rule,) = read_documents(DEPLOY / "components/monitoring/rules.yaml")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    text = (DEPLOY.parents[1] / "docs/operating.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#### (Moothall\w+)$", text, re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts]
    for alert in alerts:
        assert alert["annotations"]["runbook"] == f"docs/operating.md#{alert['alert'].lower()}"
        selectors = re.findall(r"(moothall_\w+)(?:\{(\w+)[=!])?", alert["expr"])
        assert selectors
        for name, label in selectors:
            assert label in {"", *REGISTRY.figures[name].labels}, (name, label)


def test_the_chart_and_the_images_have_the_version_of_the_package() -> None:
    chart = yaml.safe_load((DEPLOY.parent / "helm/moothall/Chart.yaml").read_text(encoding="utf-8"))
    assert {str(chart["version"]), str(chart["appVersion"])} == {__version__}
    files = [*DEPLOY.parent.rglob("*.yaml"), DEPLOY.parents[1] / "docs/operating.md"]
    tags = {
        (file.name, tag)
        for file in files
        for tag in re.findall(
            r"registry\.example/moothall(?:-workspace)?(?::|, newTag: )([\d.]+)",
            file.read_text(encoding="utf-8"),
        )
    }
    assert len(tags) == 4
    assert {tag for _, tag in tags} == {__version__}
