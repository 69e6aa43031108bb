"""The manifests say what the code reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moothall.settings import load_settings

BASE = Path(__file__).parents[2] / "deploy/k8s/base"


def documents() -> Iterator[dict[str, Any]]:
    for path in sorted(BASE.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def one(kind: str, name: str) -> dict[str, Any]:
    return next(each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name))


def test_every_file_is_part_of_it() -> None:
    named = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert sorted(named) == sorted(path.name for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")


def test_every_key_of_the_configuration_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    said = one("ConfigMap", "moothall")["data"]
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.workspace.kind == "kubernetes"
    assert settings.bus.url == said["MOOTHALL_BUS__URL"]
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
    for each in documents():
        if each["kind"] == "Namespace":
            assert each["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
        if "template" in each.get("spec", {}):
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in pod["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
