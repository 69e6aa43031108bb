"""The manifest of a workspace's Job. Values go into lists and JSON, never into a shell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from moothall.config import RunnerSettings, WorkspaceSections
from moothall.sandbox.bubblewrap import ENVIRONMENT, UID, WORKSPACE
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.kubernetes.link import CODE_EXECUTOR, EXECUTOR, LINK

LABEL = "app.kubernetes.io/name"
NAME = "moothall-workspace"
HOST = "moothall/host"
APP_LABEL = "moothall/house"
OWNER_LABELS = {"task_id": "moothall/task", "seat": "moothall/seat", "tenant": "moothall/tenant"}
_UNSAFE_CHARACTERS, _LABEL_CHARS = re.compile(r"[^A-Za-z0-9._-]+"), 63
_EXTRA_MEMORY_BYTES = 64_000_000  # for the executor itself, and its volumes in memory
_LINK_MEMORY_BYTES = 512_000_000
_TTL_SECONDS = 60  # how long a finished workspace can be inspected
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def owner_labels(owner: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with the owner of a Job. Characters that labels cannot have are replaced by
    `-`; empty labels are left out.
    """
    labels = {
        label: _UNSAFE_CHARACTERS.sub("-", owner.get(name, ""))[:_LABEL_CHARS].strip("-._")
        for name, label in OWNER_LABELS.items()
    }
    return {label: value for label, value in labels.items() if value}


def _literal(text: str) -> str:
    """Escape a text for the kubelet, which replaces `$$` by `$` and `$(NAME)` by the value of a
    variable.
    """
    return text.replace("$", "$$")


def disk_bytes(settings: WorkspaceSections) -> int:
    """Return the ephemeral storage of a workspace, with its checkout and its environment."""
    return 2 * settings.workspace.max_repository_bytes


def containers(setup: ExecutorSetup, runner: RunnerSettings) -> dict[int, str]:
    """Return the containers beside the link by their streams: one for tools, and one for blocks in
    CPython on the same files.
    """
    blocks = bool(setup.tree) and runner.enabled
    return {EXECUTOR: "hands", **({CODE_EXECUTOR: "code"} if blocks else {})}


def visible_folders(setup: ExecutorSetup) -> dict[str, str]:
    """Return the folders of this machine that a set-up sees at their own paths: volume → path."""
    ro = setup.network_access.ro if setup.network_access else ()
    return {f"shown-{number}": inside for number, (path, inside) in enumerate(ro) if path.is_dir()}


def job(
    name: str,
    labels: Mapping[str, str],
    setup: ExecutorSetup,
    settings: WorkspaceSections,
    bus: Mapping[str, str],
) -> dict[str, Any]:
    """Return the manifest of a Job. `bus` is the environment with which the link reaches the
    bus.
    """
    jobs = settings.jobs
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": jobs.seconds,
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": _pod(name, setup, settings, bus),
            },
        },
    }


def _pod(
    name: str, setup: ExecutorSetup, settings: WorkspaceSections, bus: Mapping[str, str]
) -> dict[str, Any]:
    jobs = settings.jobs
    executors = containers(setup, settings.runner)
    # The pod's limit is the sum over its containers. Its volumes count against that, and each
    # against its own limit.
    share = disk_bytes(settings) // (1 + len(executors))
    link_options = json.dumps(
        {"name": name, "names": executors, "proxied": setup.network_access is not None}
    )
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "runAsNonRoot": True,
        },
        "volumes": _volumes(setup, settings),
        "containers": [
            _link_container(setup, settings, {**bus, LINK: link_options}, share),
            *(
                _executor_container(container, setup, settings, share)
                for container in executors.values()
            ),
        ],
    }
    optional_fields = {
        "runtimeClassName": jobs.runtime_class,
        "nodeSelector": dict(jobs.node_selector),
        "tolerations": [dict(item) for item in jobs.tolerations],
        "imagePullSecrets": [{"name": item} for item in jobs.pull_secrets],
    }
    return pod | {key: value for key, value in optional_fields.items() if value}


def _volumes(setup: ExecutorSetup, settings: WorkspaceSections) -> list[dict[str, Any]]:
    executors = containers(setup, settings.runner).values()
    disk = {"sizeLimit": str(disk_bytes(settings))}
    folders = ("tree", "env", "config", *visible_folders(setup))
    return [
        *(
            {"name": item, "emptyDir": disk}
            for item in (*folders, *(f"tmp-{item}" for item in executors))
        ),
        *({"name": f"link-{item}", "emptyDir": {"sizeLimit": "1Mi"}} for item in executors),
        *(
            {"name": f"shm-{item}", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
            for item in executors
        ),
    ]


def _link_container(
    setup: ExecutorSetup, settings: WorkspaceSections, environment: Mapping[str, str], disk: int
) -> dict[str, Any]:
    """Return the container that connects the executors with the bus."""
    return {
        "name": "link",
        "image": settings.jobs.link_image,
        "command": ["python", "-m", "moothall.app.pod_link"],
        "env": [{"name": key, "value": _literal(value)} for key, value in environment.items()],
        "securityContext": _RESTRICTED,
        "resources": _resources(settings.jobs.cpu, "50m", _LINK_MEMORY_BYTES, disk),
        "volumeMounts": [
            {"name": "tree", "mountPath": WORKSPACE},
            {"name": "env", "mountPath": ENVIRONMENT},
            {"name": "config", "mountPath": "/opt/config"},
            *(
                {"name": f"link-{item}", "mountPath": f"/links/{item}"}
                for item in containers(setup, settings.runner).values()
            ),
            *(
                {"name": item, "mountPath": f"/shown/{item.removeprefix('shown-')}"}
                for item in visible_folders(setup)
            ),
        ],
    }


def _executor_container(
    name: str, setup: ExecutorSetup, settings: WorkspaceSections, disk: int
) -> dict[str, Any]:
    """Return a container that runs untrusted code: without credentials, without our environment,
    and with no writable paths but its files.
    """
    limits = setup.limits or settings.sandbox
    proxied = setup.network_access is not None and name == "hands"
    options = setup.describe_limits(
        limits, program=setup.program, own_users=False, cgroup=False, proxied=proxied
    )
    cpu = settings.jobs.cpu
    return {
        "name": name,
        "image": setup.image or settings.jobs.image,
        "command": [
            _literal(settings.jobs.python),
            "-I",
            "-S",
            "-c",
            BOOT.format(module="moothall.sandbox_runtime.container_init"),
        ],
        "args": ["/link/link.sock", _literal(json.dumps(options))],
        "workingDir": WORKSPACE,
        "securityContext": _RESTRICTED,
        "resources": _resources(cpu, _tenth(cpu), limits.memory_bytes + _EXTRA_MEMORY_BYTES, disk),
        "volumeMounts": [
            {"name": "tree", "mountPath": WORKSPACE},
            {"name": "env", "mountPath": ENVIRONMENT, "readOnly": not setup.env_writable},
            {"name": "config", "mountPath": "/opt/config", "readOnly": True},
            *(
                {"name": volume, "mountPath": inside, "readOnly": True}
                for volume, inside in visible_folders(setup).items()
            ),
            {"name": f"link-{name}", "mountPath": "/link"},
            {"name": f"tmp-{name}", "mountPath": "/tmp"},  # noqa: S108 - inside the container
            {"name": f"shm-{name}", "mountPath": "/dev/shm"},  # noqa: S108 - inside the container
        ],
    }


def _tenth(cpu: str) -> str:
    millis = Decimal(cpu.removesuffix("m")) * (1 if cpu.endswith("m") else 1000)
    return f"{max(1, int(millis / 10))}m"


def _resources(cpu: str, requested_cpu: str, memory_bytes: int, disk_bytes: int) -> dict[str, Any]:
    return {
        "requests": {
            "cpu": requested_cpu,
            "memory": str(memory_bytes // 8),
            "ephemeral-storage": str(disk_bytes // 16),
        },
        "limits": {"cpu": cpu, "memory": str(memory_bytes), "ephemeral-storage": str(disk_bytes)},
    }
