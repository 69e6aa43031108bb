"""The manifests say what the code reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from moothall.bus.nats.accounts import make
from moothall.cli.deliberate import deliberate
from moothall.settings import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy/k8s"
FOLDERS = [DEPLOY / "base", *sorted((DEPLOY / "overlays").iterdir())]
KUBERNETES = "1.34"


def documents(folder: Path = DEPLOY / "base") -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def kustomization(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return said


def one(kind: str, name: str) -> dict[str, Any]:
    return next(each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_file_is_part_of_it_and_what_kubernetes_takes(folder: Path) -> None:
    named = [name for name in kustomization(folder)["resources"] if not name.startswith("..")]
    assert sorted(named) == sorted(path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    for each in documents(folder):
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_example_of_a_pipeline_is_what_kubernetes_takes() -> None:
    (job,) = documents(DEPLOY / "examples")
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    pod = job["spec"]["template"]["spec"]
    words = [*pod["containers"][0]["command"], *pod["containers"][0]["args"]]
    known = {option for parameter in deliberate.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def configured(folder: Path) -> dict[str, str]:
    """The ConfigMap of the services, as an overlay leaves it."""
    said: dict[str, str] = one("ConfigMap", "moothall")["data"]
    for patch in kustomization(folder).get("patches", ()):
        if patch["target"] == {"kind": "ConfigMap", "name": "moothall"}:
            for change in yaml.safe_load(patch["patch"]):
                key = change["path"].removeprefix("/data/")
                assert (key in said) == (change["op"] == "replace"), f"{folder.name}: {change}"
                said[key] = change["value"]
    return said


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_key_of_the_configuration_is_a_setting(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = configured(folder)
    files = make(tmp_path / "keys")
    for name, value in said.items():
        assert isinstance(value, str), f"{name} of a ConfigMap is no text"
        monkeypatch.setenv(name, str(files.get(Path(value).name, value)))
    if "MOOTHALL_GRPC__HOST" in said:
        monkeypatch.setenv("MOOTHALL_GRPC__TOKEN", "t" * 32)  # of the Secret
    settings = load_settings()
    assert settings.workspace.kind == "kubernetes"
    assert settings.bus.url == said["MOOTHALL_BUS__URL"]
    assert settings.bus.replicas == one("StatefulSet", "nats")["spec"]["replicas"]
    assert settings.jobs.namespace == one("ResourceQuota", "workspaces")["metadata"]["namespace"]


def test_the_services_may_make_jobs_in_one_namespace_and_nothing_else() -> None:
    kinds = [each["kind"] for each in documents()]
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds)
    (role,) = [each for each in documents() if each["kind"] == "Role"]
    assert role["metadata"]["namespace"] == "moothall-workspaces"
    allowed = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {
        *(("jobs", verb) for verb in ("create", "delete", "list")),
        *((kind, verb) for kind in ("pods", "events") for verb in ("list", "watch")),
    }


def test_both_namespaces_and_every_pod_are_restricted() -> None:
    for each in (each for folder in FOLDERS for each in documents(folder)):
        if each["kind"] == "Namespace":
            assert each["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
        if "template" in each.get("spec", {}):
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in pod["containers"]:
                ours = container["image"] in {"moothall", "nats"}
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    **({"readOnlyRootFilesystem": True} if ours else {}),  # Neo4j and vLLM write into their images
                    "capabilities": {"drop": ["ALL"]},
                }
