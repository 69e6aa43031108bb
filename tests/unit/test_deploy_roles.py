"""Deployments by role cover all roles, and their ports, probes and termination match the code."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moothall.api.grpc_server import MAX_MESSAGE_BYTES
from moothall.api.http.asgi import MAX_BODY_BYTES
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.app.bus import ROLES, embedded_parts, parse_roles
from moothall.config import GrpcSettings, Settings
from moothall.events.nats.accounts import USERS, create_account_files
from moothall.pb.context.v1 import context_pb2
from moothall.pb.kernel.v1 import kernel_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2
from moothall.pb.planning.v1 import planning_pb2
from moothall.pb.runner.v1 import runner_pb2
from moothall.pb.shannon.agent import agent_pb2
from moothall.pb.storycoach.v1 import storycoach_pb2
from moothall.pb.tool.v1 import tool_pb2
from moothall.pb.workspace.v1 import workspace_pb2
from moothall.settings import load_settings
from support.callers import EVERYWHERE, TOKENS, api_dependencies, certificate
from support.deliberation_service import MemoryDeliberations
from support.kube.manifests import Objects, objects, run_kustomize

pytestmark = pytest.mark.e2e

OVERLAY = Path(__file__).parents[2] / "deploy/k8s/overlays/prod-roles"
PROD = OVERLAY.parent / "prod"
NAME = "app.kubernetes.io/name"
OF_API = {
    50051: planning_pb2,
    50052: storycoach_pb2,
    50053: workspace_pb2,
    50054: context_pb2,
    50055: orchestrator_pb2,
}
OF_TOOLS = {50056: agent_pb2, 50057: kernel_pb2, 50058: runner_pb2, 50059: tool_pb2}
ELSEWHERE = 30.0
"""The additional time of the shutdown: answers in transit, HTTP calls, hosts on Ray."""


@pytest.fixture(scope="module")
def overlay() -> Objects:
    return objects(run_kustomize(OVERLAY))


@pytest.fixture
def settings(overlay: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    files = {"bus.creds": create_account_files(tmp_path / "keys")["services.creds"]}
    for name, value in overlay["ConfigMap", "moothall", "moothall"]["data"].items():
        monkeypatch.setenv(name, str(files.get(Path(value).name, value)))
    monkeypatch.setenv("MOOTHALL_GRPC__TOKEN", "t" * 32)
    return load_settings()


def deployments(overlay: Objects) -> dict[str, dict[str, Any]]:
    """Return the specs of our deployments, by name."""
    return {
        name: manifest["spec"]
        for (kind, _, name), manifest in overlay.items()
        if kind == "Deployment"
        and manifest["spec"]["template"]["metadata"]["labels"][NAME] == "moothall"
    }


def container(spec: dict[str, Any]) -> dict[str, Any]:
    (pod_container,) = spec["template"]["spec"]["containers"]
    assert isinstance(pod_container, dict)
    return pod_container


def visible_keys(spec: dict[str, Any]) -> dict[str, str]:
    """Return the bus keys that a pod finds, with their file names."""
    (bus,) = [
        volume["secret"]
        for volume in spec["template"]["spec"]["volumes"]
        if volume["name"] == "bus"
    ]
    return {item["path"]: item["key"] for item in bus["items"]}


def test_each_role_connects_to_the_bus_with_its_own_credentials(overlay: Objects) -> None:
    for name, spec in deployments(overlay).items():
        role = name.removeprefix("moothall-")
        links = {"links.json": "links.json"} if role in {"hosts", "tools"} else {}
        assert visible_keys(spec) == {"bus.creds": f"{role}.creds", **links}
        variables = {variable["name"] for variable in container(spec)["env"]}
        assert ("MOOTHALL_JOBS__LINK_KEYS_FILE" in variables) == bool(links)
        assert "MOOTHALL_RAY__CREDENTIALS_FILE" not in variables
    assert {name.removeprefix("moothall-") for name in deployments(overlay)} == set(USERS)
    assert "moothall-bus" not in str(overlay["RayCluster", "moothall", "hosts"])


def roles_of(spec: dict[str, Any]) -> tuple[str, ...]:
    serve, roles = container(spec)["args"]
    assert serve == "serve"
    return parse_roles([roles.removeprefix("--only=")])


def test_every_role_has_one_deployment_and_no_part_is_embedded(
    overlay: Objects, settings: Settings
) -> None:
    specs = deployments(overlay)
    assert "moothall" not in specs
    assert sorted(role for spec in specs.values() for role in roles_of(spec)) == sorted(ROLES)
    for spec in specs.values():
        assert embedded_parts(settings, frozenset(roles_of(spec))) == ()


def test_no_deployment_selects_the_pods_of_another(overlay: Objects) -> None:
    for deployment, other_deployment in combinations(deployments(overlay).values(), 2):
        assert (
            deployment["selector"]["matchLabels"].items()
            - other_deployment["template"]["metadata"]["labels"].items()
        )


def test_all_deployments_share_a_volume_that_many_nodes_can_mount(overlay: Objects) -> None:
    for spec in deployments(overlay).values():
        (claim,) = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec["template"]["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        assert overlay["PersistentVolumeClaim", "moothall", claim]["spec"]["accessModes"] == [
            "ReadWriteMany"
        ]


def test_a_stopped_process_gets_the_configured_grace_period(
    overlay: Objects, settings: Settings
) -> None:
    assert settings.serve.leave_seconds >= 5, "endpoints are not removed at once"
    expected = settings.serve.leave_seconds + settings.grpc.grace_seconds + ELSEWHERE
    assert {
        spec["template"]["spec"]["terminationGracePeriodSeconds"]
        for spec in deployments(overlay).values()
    } == {expected}


def test_the_single_process_gets_its_configured_termination_time() -> None:
    pod = objects(run_kustomize(PROD))["Deployment", "moothall", "moothall"]["spec"]["template"][
        "spec"
    ]
    assert pod["terminationGracePeriodSeconds"] == GrpcSettings().grace_seconds + ELSEWHERE


def test_only_the_deployment_that_starts_ray_hosts_has_the_token_and_access(
    overlay: Objects,
) -> None:
    knowing = [
        name
        for name, spec in deployments(overlay).items()
        if "RAY_AUTH_TOKEN" in str(spec) or "initContainers" in str(spec)
    ]
    assert knowing == ["moothall-hosts"]
    allowed = overlay["NetworkPolicy", "moothall", "hosts"]["spec"]["ingress"][0]["from"][1][
        "podSelector"
    ]["matchLabels"]
    assert allowed == deployments(overlay)["moothall-hosts"]["selector"]["matchLabels"]


def test_deployments_that_create_no_jobs_have_no_service_account_token(overlay: Objects) -> None:
    without_token = {
        name
        for name, spec in deployments(overlay).items()
        if spec["template"]["spec"].get("automountServiceAccountToken") is False
    }
    assert without_token == {
        name
        for name, spec in deployments(overlay).items()
        if not {"hosts", "tools"} & set(roles_of(spec))
    }


def test_service_ports_lead_to_the_role_that_answers_them(overlay: Objects) -> None:
    for service, role, answered in (
        ("moothall", "api", OF_API),
        ("moothall-tools", "tools", OF_TOOLS),
    ):
        spec = overlay["Service", "moothall", service]["spec"]
        (answering,) = [
            deployment
            for deployment in deployments(overlay).values()
            if role in roles_of(deployment)
        ]
        assert spec["selector"] == answering["selector"]["matchLabels"]
        container_ports = {
            port["containerPort"]: port["name"] for port in container(answering)["ports"]
        }
        leads = {
            port["port"]: port.get("targetPort", container_ports.get(port["port"]))
            for port in spec["ports"]
        }
        assert {port for port, target in leads.items() if target == "grpc"} == answered.keys() | {
            50055
        }
        assert leads[8080] == "web"


def test_a_single_process_api_has_all_service_ports() -> None:
    (service,) = [
        manifest
        for key, manifest in objects(run_kustomize(PROD)).items()
        if key == ("Service", "moothall", "moothall")
    ]
    assert {port["port"] for port in service["spec"]["ports"]} == {*OF_API, *OF_TOOLS, 8080}


def test_the_api_page_names_the_host_for_pipelines(overlay: Objects) -> None:
    (rule,) = overlay["Ingress", "moothall", "moothall-grpc"]["spec"]["rules"]
    page = (OVERLAY.parents[3] / "docs/api.md").read_text(encoding="utf-8")
    assert page.count(f"--server {rule['host']}:443 ") == 2


def services(ingress: dict[str, Any]) -> dict[str, str]:
    """Return the Service of each path."""
    (rule,) = ingress["spec"]["rules"]
    return {path["path"]: path["backend"]["service"]["name"] for path in rule["http"]["paths"]}


def test_the_ingress_routes_tool_calls_to_tools_and_keeps_browser_sessions(
    overlay: Objects,
) -> None:
    ingress = overlay["Ingress", "moothall", "moothall"]
    paths, grpc = services(ingress), services(overlay["Ingress", "moothall", "moothall-grpc"])
    names = [
        f"/{service.full_name}"
        for module in OF_TOOLS.values()
        for service in module.DESCRIPTOR.services_by_name.values()
    ]
    assert grpc == {"/": "moothall"} | dict.fromkeys(names, "moothall-tools")
    assert paths == grpc | {"/v1": "moothall-tools"}
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/affinity"] == "cookie"


def test_the_ingress_body_limits_allow_the_apis_largest_messages(overlay: Objects) -> None:
    for name, max_bytes in (
        ("moothall", MAX_BODY_BYTES),
        ("moothall-grpc", MAX_MESSAGE_BYTES),
    ):
        limit = overlay["Ingress", "moothall", name]["metadata"]["annotations"][
            "nginx.ingress.kubernetes.io/proxy-body-size"
        ]
        assert limit.endswith("m")
        assert int(limit[:-1]) * 1024**2 > max_bytes, "nginx limits bodies to 1m by default"


def test_scaled_roles_have_disruption_budgets_and_autoscalers(overlay: Objects) -> None:
    specs = deployments(overlay)
    for name in ("moothall-api", "moothall-collector"):
        scaled = overlay["HorizontalPodAutoscaler", "moothall", name]["spec"]
        assert scaled["scaleTargetRef"]["name"] == name
        assert "replicas" not in specs[name], "each apply would undo what was scaled"
        assert scaled["minReplicas"] == 2
        assert overlay["PodDisruptionBudget", "moothall", name]["spec"] == {
            "maxUnavailable": 1,
            "selector": specs[name]["selector"],
        }
    assert specs["moothall-tools"]["replicas"] == 1, "a second would never be ready"


async def test_the_readiness_probe_is_answered_as_the_kubelet_sends_it(
    overlay: Objects, settings: Settings, tmp_path: Path
) -> None:
    (probe,) = {
        str(container(spec)["readinessProbe"]): container(spec)["readinessProbe"]["httpGet"]
        for spec in deployments(overlay).values()
    }.values()
    dependencies = api_dependencies(MemoryDeliberations())
    dependencies.serving.accepting_calls.set()
    tls = certificate(tmp_path)
    web = settings.web.model_copy(update={"port": 0, **tls})
    assert (web.host, probe["scheme"], probe["port"]) == (EVERYWHERE, "HTTPS", "web")
    async with (
        http_server(web, dependencies, BearerTokens(TOKENS), configured=True) as served,
        aiohttp.ClientSession() as kubelet,
    ):
        url = f"https://127.0.0.1:{served.port}{probe['path']}"
        headers = {header["name"]: header["value"] for header in probe["httpHeaders"]}
        async with kubelet.get(url, headers=headers, ssl=False) as answer:
            assert answer.status == 200
        async with kubelet.get(url, ssl=False) as answer:
            assert answer.status == 403, "it is not called by the pod's address"
