"""deploy/helm renders the same objects as deploy/k8s, and wrong values are reported."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema_rs import Draft202012Validator

from support import gobuilt
from support.kube import crds
from support.kube.manifests import Objects, objects, run_kustomize

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/moothall"
IMAGES = ("--set=images.moothall=a/moothall:1", "--set=images.workspace=a/workspace:1")
# A Helm built by `go install` assumes a very old cluster.
TEMPLATE = ("template", "--kube-version=1.34")


@pytest.fixture(scope="module", autouse=True)
def _require_definitions() -> None:
    try:
        crds.files()
    except gobuilt.Missing as missing:
        pytest.skip(
            f"{missing}; its modules hold the definitions of KubeRay, the Prometheus operator and "
            "snapshots"
        )


@pytest.fixture(scope="module")
def helm() -> str:
    try:
        return str(gobuilt.program("helm"))
    except gobuilt.Missing as missing:
        pytest.skip(
            f"{missing}; `PYTHONPATH=tests .venv/bin/python -m support.gobuilt helm` says more"
        )


def render_chart(helm: str, *arguments: str, namespace: str = "moothall") -> str:
    command = [helm, *TEMPLATE, "a-release", str(CHART), f"--namespace={namespace}", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def assert_accepted(manifest: dict[str, Any]) -> None:
    schema = crds.schema(manifest["kind"])
    if schema is None:
        kubernetes_validate.validate(manifest, "1.34", strict=True)
    else:
        Draft202012Validator(schema).validate(manifest)


def in_order(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return volumes sorted by name: kustomize puts patched ones first, which has no meaning."""
    if manifest["kind"] == "Deployment":
        manifest["spec"]["template"]["spec"]["volumes"].sort(key=lambda volume: str(volume["name"]))
    return manifest


def assert_same_manifests(ours: Objects, theirs: Objects) -> None:
    del theirs["Namespace", "", "moothall"]  # Helm's own: --create-namespace
    for (kind, _, name), manifest in ours.items():
        if name.startswith("moothall"):
            if (
                kind == "Deployment"
                # Kustomize leaves the pods alone when settings change; Helm's users expect a
                # restart.
            ):
                assert manifest["spec"]["template"]["metadata"].pop("annotations").keys() == {
                    "checksum/settings"
                }
            # Kustomize does not remove objects that are no longer in the manifests.
            if kind == "PersistentVolumeClaim":
                assert manifest["metadata"].pop("annotations") == {
                    "helm.sh/resource-policy": "keep"
                }
    assert ours.keys() == theirs.keys()
    for key, manifest in theirs.items():
        assert in_order(ours[key]) == in_order(manifest), key
        assert_accepted(manifest)


@pytest.mark.parametrize(
    "overlay", sorted(path.name for path in (DEPLOY / "k8s/overlays").iterdir())
)
def test_the_chart_renders_the_objects_of_the_overlay(helm: str, overlay: str) -> None:
    ours = render_chart(helm, f"--values={CHART}/ci/{overlay}-values.yaml")
    assert_same_manifests(objects(ours), objects(run_kustomize(DEPLOY / "k8s/overlays" / overlay)))


COMPONENTS = {
    "hosts": "hosts.enabled=true",
    "monitoring": "monitoring.enabled=true",
    "egress": "egress.enabled=true,egress.apiServer={192.0.2.1/32}",
    "environments": "environments.enabled=true",
}
BESIDE = {"roles"}  # requires an overlay with TLS endpoints: prod-roles has them


def test_every_component_can_be_enabled_by_chart_values(helm: str, tmp_path: Path) -> None:
    assert COMPONENTS.keys() | BESIDE == {
        path.name for path in (DEPLOY / "k8s/components").iterdir()
    }
    copied = yaml.safe_load(
        (DEPLOY / "k8s/overlays/dev/kustomization.yaml").read_text(encoding="utf-8")
    )
    copied["resources"] = [os.path.relpath(DEPLOY / "k8s/base", tmp_path)]
    copied["components"] = [
        os.path.relpath(DEPLOY / "k8s/components" / name, tmp_path) for name in COMPONENTS
    ]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(copied), encoding="utf-8")
    chosen = [f"--set={value}" for value in COMPONENTS.values()]
    ours = render_chart(helm, f"--values={CHART}/ci/dev-values.yaml", *chosen)
    assert_same_manifests(objects(ours), objects(run_kustomize(tmp_path)))


def test_environments_are_mounted_in_pods_that_create_workspaces(helm: str, tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder, base, component in (
        (inner, DEPLOY / "k8s/overlays/prod", "environments"),
        (outer, inner, "roles"),
    ):
        folder.mkdir()
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(base, folder)],
            "components": [os.path.relpath(DEPLOY / "k8s/components" / component, folder)],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    ours = objects(
        render_chart(
            helm, f"--values={CHART}/ci/prod-roles-values.yaml", "--set=environments.enabled=true"
        )
    )
    assert_same_manifests(ours, objects(run_kustomize(outer)))
    pods = {
        name: manifest["spec"]["template"]["spec"]
        for (kind, _, name), manifest in ours.items()
        if kind == "Deployment"
    }
    pods["worker"] = ours["RayCluster", "moothall", "hosts"]["spec"]["workerGroupSpecs"][0][
        "template"
    ]["spec"]
    mounting = {
        name
        for name, pod in pods.items()
        if "environments" in {volume["name"] for volume in pod.get("volumes", ())}
    }
    assert mounting == {"worker", "moothall-hosts", "moothall-tools"}


EVERYTHING = """
images: {moothall: "a/moothall@sha256:00", workspace: b}
settings: {MOOTHALL_LLM__MODEL: 'a "name"', MOOTHALL_LIMITS__TURNS: 3, MOOTHALL_RAY__HOSTS: "7"}
secrets: {settings: own, bus: own-bus, accounts: own-accounts, tls: own-tls}
services: {storage: {size: 5Gi, className: fast}}
nats: {replicas: 5, storage: {className: fast}}
workspaces: {namespace: other-workspaces, createNamespace: false}
ingress: {host: m.example, className: nginx, annotations: {}}
model: {url: "https://models.example/v1", contextTokens: 8192}
neo4j: {enabled: true, heap: "2147483648", storage: {className: slow}}
hosts: {enabled: true, replicas: 3}
monitoring: {enabled: true}
egress: {enabled: true, apiServer: [192.0.2.1/32, "::1/128"]}
"""


def test_user_values_are_rendered_in_another_namespace(helm: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(EVERYTHING, encoding="utf-8")
    text = render_chart(helm, f"--values={tmp_path}/values.yaml", namespace="other")
    manifests = objects(text)
    for manifest in manifests.values():
        assert_accepted(manifest)
    assert {space for _, space, _ in manifests} == {"other", "other-workspaces"}
    settings = manifests["ConfigMap", "other", "moothall"]["data"]
    assert settings["MOOTHALL_LLM__MODEL"] == 'a "name"'
    assert settings["MOOTHALL_LLM__BASE_URL"] == "https://models.example/v1"
    assert settings["MOOTHALL_RAY__HOSTS"] == "7", "a user's values take precedence"
    assert settings["MOOTHALL_BUS__REPLICAS"] == "5"
    assert settings["MOOTHALL_JOBS__NAMESPACE"] == "other-workspaces"
    assert "nats-4.nats:6222" in manifests["ConfigMap", "other", "nats"]["data"]["nats.conf"]
    assert manifests["PodDisruptionBudget", "other", "nats"]["spec"]["minAvailable"] == 3
    assert manifests["PodDisruptionBudget", "other", "hosts"]["spec"]["minAvailable"] == 2, (
        "of three hosts"
    )
    assert (
        manifests["PersistentVolumeClaim", "other", "moothall"]["spec"]["storageClassName"]
        == "fast"
    )
    (claim,) = manifests["StatefulSet", "other", "neo4j"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "slow"
    named = set(secrets(manifests.values()))
    assert named == {"own", "own-bus", "own-accounts", "own-tls", "neo4j", "hosts"}


PLACED = """
images: {moothall: "a/moothall:1", workspace: b}
pods: {nodeSelector: {pool: ours}, tolerations: [{key: ours, operator: Exists}], imagePullSecrets: [one, two]}
neo4j: {enabled: true}
hosts: {enabled: true}
vllm: {enabled: true, nodeSelector: {gpu: "yes"}, tolerations: [{key: nvidia.com/gpu, operator: Exists}]}
"""  # noqa: E501 - a line of embedded text


def test_every_pod_runs_where_configured_with_the_secrets_for_its_image(
    helm: str, tmp_path: Path
) -> None:
    (tmp_path / "values.yaml").write_text(PLACED, encoding="utf-8")
    manifests = objects(render_chart(helm, f"--values={tmp_path}/values.yaml"))
    placed = {}
    for (kind, _, name), manifest in manifests.items():
        spec = manifest.get("spec", {})
        groups = (
            (spec["headGroupSpec"], *spec["workerGroupSpecs"]) if kind == "RayCluster" else (spec,)
        )
        for number, group in enumerate(groups):
            if "template" in group:
                assert_accepted(manifest)
                placed[f"{name}-{number}"] = pod = group["template"]["spec"]
                assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert placed.keys() == {"moothall-0", "nats-0", "neo4j-0", "vllm-0", "hosts-0", "hosts-1"}
    ours, gpu = (
        {"key": "ours", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
    )
    assert placed["vllm-0"]["nodeSelector"] == {"pool": "ours", "gpu": "yes"}
    assert placed["vllm-0"]["tolerations"] == [ours, gpu]
    for name in placed.keys() - {"vllm-0"}:
        assert (placed[name]["nodeSelector"], placed[name]["tolerations"]) == (
            {"pool": "ours"},
            [ours],
        ), name
    assert (
        manifests["ConfigMap", "moothall", "moothall"]["data"]["MOOTHALL_JOBS__PULL_SECRETS"]
        == '["one","two"]'
    )


NUMBERS = """
images: {moothall: "a/moothall:1", workspace: b}
settings: {MOOTHALL_BUS__MAX_STORE_BYTES: 50000000000, MOOTHALL_BUS__WAIT_SECONDS: 0, MOOTHALL_GRPC__GRACE_SECONDS: 89.5, MOOTHALL_PAGE__X: false}
vllm: {enabled: true, contextTokens: 1048576}
"""  # noqa: E501 - a line of embedded text


def test_numbers_are_rendered_as_written(helm: str, tmp_path: Path) -> None:
    """Helm reads numbers of a file as floats, and takes 0 and false for nothing."""
    (tmp_path / "values.yaml").write_text(NUMBERS, encoding="utf-8")
    manifests = objects(render_chart(helm, f"--values={tmp_path}/values.yaml"))
    settings = manifests["ConfigMap", "moothall", "moothall"]["data"]
    assert settings["MOOTHALL_BUS__MAX_STORE_BYTES"] == "50000000000"
    assert settings["MOOTHALL_BUS__WAIT_SECONDS"] == "0", "a user's values take precedence"
    assert settings["MOOTHALL_GRPC__GRACE_SECONDS"] == "89.5"
    assert settings["MOOTHALL_PAGE__X"] == "false"
    assert settings["MOOTHALL_LLM__CONTEXT_TOKENS"] == "1048576"
    (server,) = manifests["Deployment", "moothall", "vllm"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--max-model-len=1048576" in server["args"]
    assert (
        manifests["Deployment", "moothall", "moothall"]["spec"]["template"]["spec"][
            "terminationGracePeriodSeconds"
        ]
        == 90 + 30
    )


BY_ROLE = """
images: {moothall: "a/moothall:1", workspace: b}
settings: {MOOTHALL_GRAPH__URL: "neo4j://graph.example:7687", MOOTHALL_SERVE__LEAVE_SECONDS: 12.5, MOOTHALL_GRPC__GRACE_SECONDS: "60"}
secrets: {tls: own-tls}
services: {storage: {className: many}}
ingress: {host: m.example, annotations: {nginx.ingress.kubernetes.io/session-cookie-name: own}}
model: {url: "https://models.example/v1"}
roles: {enabled: true, minReplicas: 3, maxReplicas: 9, cpu: 500m}
"""  # noqa: E501 - a line of embedded text


def test_roles_are_rendered_with_custom_values_and_without_ray(helm: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(BY_ROLE, encoding="utf-8")
    manifests = objects(render_chart(helm, f"--values={tmp_path}/values.yaml", namespace="other"))
    for manifest in manifests.values():
        assert_accepted(manifest)
    services = {
        name: manifest["spec"]
        for (kind, _, name), manifest in manifests.items()
        if kind == "Deployment"
    }
    assert services.keys() == {
        "moothall-api",
        "moothall-collector",
        "moothall-tools",
        "moothall-hosts",
    }
    for manifest in services.values():
        pod = manifest["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 13 + 60 + 30, (
            "the pod's grace period follows the settings"
        )
        assert "initContainers" not in pod
    claim = manifests["PersistentVolumeClaim", "other", "moothall-shared"]["spec"]
    assert (claim["accessModes"], claim["storageClassName"]) == (["ReadWriteMany"], "many")
    for name in ("moothall-api", "moothall-collector"):
        scaled = manifests["HorizontalPodAutoscaler", "other", name]["spec"]
        assert (scaled["minReplicas"], scaled["maxReplicas"]) == (3, 9)
    annotations = manifests["Ingress", "other", "moothall"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/session-cookie-name"] == "own"
    assert annotations["nginx.ingress.kubernetes.io/affinity"] == "cookie"


def secrets(node: Any) -> Iterable[str]:
    """Yield the names of Secrets that anything here refers to."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"secretRef", "secretKeyRef", "credentials"}:
                yield value["name"]
            elif key == "secretName":
                yield value
            else:
                yield from secrets(value)
    elif isinstance(node, Iterable) and not isinstance(node, str):
        for item in node:
            yield from secrets(item)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=images.moothall="], "/images/moothall"),
        (["--set=replicas=2"], "'replicas' not allowed"),
        (["--set=nats.replicas=2"], "/nats/replicas"),
        (["--set=settings.llm=x"], "'llm' does not match pattern '^MOOTHALL_"),
        (["--set=services.storage.size=big"], "/services/storage/size"),
        (["--set=neo4j.storage.size="], "/neo4j/storage/size"),
        (["--set=vllm.storage.size="], "/vllm/storage/size"),
        (["--set=ingress.host=m.example"], "ingress.host needs secrets.tls"),
        (["--set=workspaces.namespace=default"], "workspaces.namespace must not be the namespace"),
        (["--set=egress.enabled=true"], "egress.enabled needs egress.apiServer"),
        (["--set=roles.enabled=true"], "roles.enabled needs secrets.tls"),
        (
            ["--set=roles.enabled=true,secrets.tls=t"],
            "roles.enabled needs neo4j.enabled or settings.MOOTHALL_GRAPH__URL",
        ),
        (
            ["--set=roles.enabled=true,secrets.tls=t,neo4j.enabled=true"],
            "roles.enabled needs vllm.enabled or model.url",
        ),
        (
            [
                "--set=roles.enabled=true,secrets.tls=t,neo4j.enabled=true,model.url=http://m/v1,services.storage.size="
            ],
            "all roles share a volume",
        ),
        (["--set=roles.maxReplicas=0"], "/roles/maxReplicas"),
    ],
)
def test_invalid_values_are_named(helm: str, options: list[str], message: str) -> None:
    completed = subprocess.run(
        [helm, *TEMPLATE, "a", str(CHART), *IMAGES, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode != 0
    assert message in completed.stderr.replace("additional properties ", ""), completed.stderr


def test_the_documented_install_command_is_valid(helm: str) -> None:
    text = (DEPLOY.parent / "docs/operating.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    helm upgrade --install (.*)$", text, re.MULTILINE)
    completed = subprocess.run(
        [helm, *TEMPLATE, *shlex.split(line)],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    manifests = objects(completed.stdout)
    assert ("PersistentVolumeClaim", "moothall", "moothall") in manifests, (
        "unspecified values keep the previous behaviour"
    )
    for manifest in manifests.values():
        assert_accepted(manifest)


def test_the_examples_match_their_definitions() -> None:
    for path in (DEPLOY / "k8s/examples").glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert_accepted(document)


def test_helm_lint_reports_nothing(helm: str) -> None:
    completed = subprocess.run(
        [helm, "lint", "--strict", str(CHART), *IMAGES], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_the_values_schema_is_complete() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, value in values.items():
        if "properties" in schema["properties"][name]:
            assert schema["properties"][name]["properties"].keys() == value.keys(), name
