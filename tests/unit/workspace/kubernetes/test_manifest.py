from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from moothall.config import (
    JobSettings,
    RunnerSettings,
    SandboxSettings,
    Settings,
    WorkspaceSettings,
)
from moothall.domain.repository import Base, Profile
from moothall.errors import ConfigurationError
from moothall.settings import load_settings
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.kubernetes.link import LINK
from moothall.workspace.kubernetes.manifest import job, owner_labels
from moothall.workspace.layout import environment_key, prepared_key

JOBS = JobSettings(
    image="work:1",
    link_image="moothall:1",
    runtime_class="gvisor",
    node_selector={"pool": "work"},
    pull_secrets=("hub",),
)
SETTINGS = Settings(jobs=JOBS, sandbox=SandboxSettings(memory_bytes=1_000_000_000))
PLACE = ExecutorSetup("key", (Path("/tree"),), env=Path("/env"))
LABELS = {"moothall/host": "host"}
SECRET = {"MOOTHALL_BUS__URL": "nats://bus:4222", "MOOTHALL_BUS__TOKEN": "s3cret"}


def test_only_the_link_has_credentials() -> None:
    pod = job("one", LABELS, PLACE, SETTINGS, SECRET)["spec"]["template"]["spec"]
    link, *services = pod["containers"]
    assert [container["name"] for container in services] == ["hands", "code"]
    assert "s3cret" in json.dumps(link)
    for container in services:
        assert "s3cret" not in json.dumps(container)
        assert "env" not in container
        assert "envFrom" not in container
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_a_job_is_restricted_bounded_and_ends_by_itself() -> None:
    document = job("one", LABELS, PLACE, SETTINGS, SECRET)
    spec = document["spec"]
    assert (
        spec["backoffLimit"],
        spec["activeDeadlineSeconds"],
        spec["ttlSecondsAfterFinished"],
    ) == (0, 7200, 60)
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        layers = container["securityContext"]
        assert (layers["allowPrivilegeEscalation"], layers["readOnlyRootFilesystem"]) == (
            False,
            True,
        )
        assert layers["capabilities"] == {"drop": ["ALL"]}
        assert layers["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"cpu", "memory", "ephemeral-storage"} == set(container["resources"]["limits"])
    assert (pod["runtimeClassName"], pod["nodeSelector"], pod["imagePullSecrets"]) == (
        "gvisor",
        {"pool": "work"},
        [{"name": "hub"}],
    )
    assert "tolerations" not in pod
    tolerations = (
        {"key": "pool", "operator": "Equal", "value": "work", "effect": "NoSchedule"},
        {"operator": "Exists"},
    )
    tolerant = Settings(jobs=JOBS.model_copy(update={"tolerations": tolerations}))
    assert job("one", LABELS, PLACE, tolerant, SECRET)["spec"]["template"]["spec"][
        "tolerations"
    ] == list(tolerations)


@pytest.mark.parametrize(
    ("cpu_limit", "cpu_request"),
    [("1", "100m"), ("4", "400m"), ("50m", "5m"), ("0.5", "50m"), ("5m", "1m")],
)
def test_a_container_requests_a_tenth_of_its_cpu_limit(cpu_limit: str, cpu_request: str) -> None:
    settings = Settings(jobs=JOBS.model_copy(update={"cpu": cpu_limit}))
    for container in job("one", LABELS, PLACE, settings, SECRET)["spec"]["template"]["spec"][
        "containers"
    ][1:]:
        assert (
            container["resources"]["requests"]["cpu"],
            container["resources"]["limits"]["cpu"],
        ) == (
            cpu_request,
            cpu_limit,
        )


def test_an_invalid_cpu_amount_is_named() -> None:
    with pytest.raises(ValidationError, match="cpu"):
        JobSettings(cpu="two")


@pytest.mark.parametrize("blocks", [True, False], ids=["two beside the link", "one"])
def test_everything_a_pod_writes_is_within_the_disk_limit_of_a_workspace(*, blocks: bool) -> None:
    settings = Settings(jobs=JOBS, runner=RunnerSettings(enabled=blocks))
    limit = 2 * settings.workspace.max_repository_bytes
    pod = job("one", LABELS, PLACE, settings, SECRET)["spec"]["template"]["spec"]
    assert len(pod["containers"]) == 2 + blocks
    limits = [
        int(container["resources"]["limits"]["ephemeral-storage"])
        for container in pod["containers"]
    ]
    assert 0 <= limit - sum(limits) < len(limits)
    sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"]}
    assert sizes["tree"] == sizes["env"] == sizes["tmp-hands"] == str(limit)
    assert sizes["link-hands"] == "1Mi"


def test_the_environment_is_writable_for_set_up_only() -> None:
    def read_only(place: ExecutorSetup) -> bool:
        services = job("one", LABELS, place, SETTINGS, {})["spec"]["template"]["spec"][
            "containers"
        ][1]
        return next(
            bool(mount.get("readOnly"))
            for mount in services["volumeMounts"]
            if mount["name"] == "env"
        )

    assert read_only(PLACE)
    assert not read_only(
        ExecutorSetup("setup", (Path("/tree"),), env=Path("/env"), env_writable=True)
    )


def expand(text: str, variables: dict[str, str]) -> str:
    """Expand the variables of a text like a kubelet."""

    def put(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put, text)


@given(st.text(max_size=60) | st.text("$()A", max_size=20))
@example("$(A)")
@example("pa$$word")
@example("$$$(A)$")
def test_a_value_with_special_characters_is_passed_unchanged(text: str) -> None:
    """No shell is involved, and references that a kubelet would expand are escaped, so quotes,
    `$()`, `$$` and newlines stay unchanged.
    """
    settings = Settings(jobs=JOBS.model_copy(update={"python": text}))
    document = job(
        "one",
        LABELS,
        replace(PLACE, program=text),
        settings,
        {"A": "put in", "MOOTHALL_BUS__TOKEN": text},
    )
    link, services = document["spec"]["template"]["spec"]["containers"][:2]
    variables: dict[str, str] = {}
    for variable in link["env"]:
        variables[variable["name"]] = expand(variable["value"], variables)
    assert variables["MOOTHALL_BUS__TOKEN"] == text
    assert json.loads(variables[LINK])["name"] == "one"
    assert expand(services["command"][0], variables) == text
    assert services["command"][1:4] == ["-I", "-S", "-c"]
    assert json.loads(expand(services["args"][1], variables))["program"] == text


@given(
    st.dictionaries(
        st.sampled_from(["task_id", "seat", "tenant", "trace_id"]), st.text(max_size=200)
    )
)
def test_labels_are_valid_for_any_task_id(owner: dict[str, str]) -> None:
    for key, value in owner_labels(owner).items():
        assert key.startswith("moothall/")
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)


def test_labels_contain_task_seat_and_tenant() -> None:
    labels = owner_labels(
        {"task_id": "story-1/$(id)", "seat": "agent-dev-001", "tenant": "team a", "trace_id": "x"}
    )
    assert labels == {
        "moothall/task": "story-1-id",
        "moothall/seat": "agent-dev-001",
        "moothall/tenant": "team-a",
    }


def test_a_repository_uses_its_configured_image_and_the_link_uses_the_default() -> None:
    jobs = JobSettings(
        images={"shop": "shop:1", "https://git.example/legacy/*": "old:1", "*": "any:1"}
    )
    assert jobs.image_of("shop", "/srv/shop") == "shop:1"
    assert jobs.image_of("x", "https://git.example/legacy/one.git") == "old:1"
    assert jobs.image_of("x", "/srv/x") == "any:1"
    assert JOBS.image_of("shop", "/srv/shop") == ""
    pod = job("one", LABELS, replace(PLACE, image="shop:1"), SETTINGS, SECRET)["spec"]["template"][
        "spec"
    ]
    assert [container["image"] for container in pod["containers"]] == [
        "moothall:1",
        "shop:1",
        "shop:1",
    ]
    with pytest.raises(ValidationError, match="at least 1 character"):
        JobSettings(images={"shop": ""})


def test_environments_of_different_images_have_different_keys() -> None:
    base = Base(
        "shop",
        "0" * 40,
        Profile(setup=(("pip", "install", "-e", "."),), checks={"tests": ("pytest",)}),
    )
    bases = (base, replace(base, image="shop:1"), replace(base, image="shop:2"))
    assert (
        len({environment_key(base) for base in bases})
        == len({prepared_key(base) for base in bases})
        == 3
    )
    assert len({prepared_key(replace(base, profile=Profile())) for base in bases}) == 3, (
        "nothing is set up, yet its checks run there"
    )


def test_missing_job_settings_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"jobs.image, jobs.link_image, bus.url must be set"
    ):
        load_settings(data_dir=tmp_path, workspace=WorkspaceSettings(kind="kubernetes"))
