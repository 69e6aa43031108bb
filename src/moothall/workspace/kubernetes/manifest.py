"""The Job of one workspace. Values go into lists and JSON, never into a shell."""

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
from moothall.workspace.kubernetes.link import LINK
from moothall.workspace.kubernetes.multiplexer import CODE, HANDS

LABEL = "app.kubernetes.io/name"
NAME = "moothall-workspace"
HOST = "moothall/host"
HOUSE = "moothall/house"
WHOSE = {"task_id": "moothall/task", "seat": "moothall/seat", "tenant": "moothall/tenant"}
_ODD, _LABEL_CHARS = re.compile(r"[^A-Za-z0-9._-]+"), 63
_SPARE_MEMORY = 64_000_000  # the executor's own, and what its volumes of memory hold
_LINK_MEMORY = 512_000_000
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def labels_of(whose: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that say whose a Job is; what no label can be is left out or replaced by
    `-`.
    """
    said = {
        label: _ODD.sub("-", whose.get(name, ""))[:_LABEL_CHARS].strip("-._")
        for name, label in WHOSE.items()
    }
    return {label: value for label, value in said.items() if value}


def _literal(text: str) -> str:
    """Return it so that the kubelet leaves it as it is, which reads `$$` as `$` and puts another
    variable's value for `$(NAME)`.
    """
    return text.replace("$", "$$")


def containers(setup: ExecutorSetup, runner: RunnerSettings) -> dict[int, str]:
    """Return the containers beside the link, by their stream: one for tools, and one for blocks of
    CPython on the same files.
    """
    blocks = bool(setup.tree) and runner.enabled and runner.full
    return {HANDS: "hands", **({CODE: "code"} if blocks else {})}


def visible_folders(setup: ExecutorSetup) -> dict[str, str]:
    """Return the folders of this machine that a set-up sees where they lie here, each by the name
    of its volume.
    """
    ro = setup.reach.ro if setup.reach else ()
    return {f"shown-{number}": inside for number, (path, inside) in enumerate(ro) if path.is_dir()}


def job(
    name: str,
    labels: Mapping[str, str],
    setup: ExecutorSetup,
    settings: WorkspaceSections,
    bus: Mapping[str, str],
) -> dict[str, Any]:
    """Return the manifest. `labels`: whose it is; `bus`: the environment by which the link reaches
    the bus.
    """
    jobs = settings.jobs
    beside = containers(setup, settings.runner)
    folders = visible_folders(setup)
    volumes = ("tree", "env", "config", *folders)
    # What all containers may take together is the pod's bound: its volumes count against that, and
    # each against its own limit.
    share, bound = jobs.disk_bytes // (1 + len(beside)), {"sizeLimit": str(jobs.disk_bytes)}
    told = json.dumps({"name": name, "names": beside, "proxied": setup.reach is not None})
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
        "volumes": [
            *(
                {"name": one, "emptyDir": bound}
                for one in (*volumes, *(f"tmp-{one}" for one in beside.values()))
            ),
            *({"name": f"link-{one}", "emptyDir": {"sizeLimit": "1Mi"}} for one in beside.values()),
            *(
                {"name": f"shm-{one}", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
                for one in beside.values()
            ),
        ],
        "containers": [
            {
                "name": "link",
                "image": jobs.link_image,
                "command": ["python", "-m", "moothall.app.pod_link"],
                "env": [
                    {"name": key, "value": _literal(value)}
                    for key, value in {**bus, LINK: told}.items()
                ],
                "securityContext": _RESTRICTED,
                "resources": _resources(jobs.cpu, "50m", _LINK_MEMORY, share),
                "volumeMounts": [
                    {"name": "tree", "mountPath": WORKSPACE},
                    {"name": "env", "mountPath": ENVIRONMENT},
                    {"name": "config", "mountPath": "/opt/config"},
                    *(
                        {"name": f"link-{one}", "mountPath": f"/links/{one}"}
                        for one in beside.values()
                    ),
                    *(
                        {"name": one, "mountPath": f"/shown/{one.removeprefix('shown-')}"}
                        for one in folders
                    ),
                ],
            },
            *(_hands(one, setup, settings, share) for one in beside.values()),
        ],
    }
    wanted = {
        "runtimeClassName": jobs.runtime_class,
        "nodeSelector": dict(jobs.node_selector),
        "tolerations": [dict(one) for one in jobs.tolerations],
        "imagePullSecrets": [{"name": one} for one in jobs.pull_secrets],
    }
    pod |= {key: value for key, value in wanted.items() if value}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": jobs.seconds,
            "ttlSecondsAfterFinished": jobs.ttl_seconds,
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def _hands(
    name: str, setup: ExecutorSetup, settings: WorkspaceSections, disk: int
) -> dict[str, Any]:
    """A container that runs what a model wrote: no credentials, no environment of ours, nothing to
    write to but its files.
    """
    limits = setup.limits or settings.sandbox
    proxied = setup.reach is not None and name == "hands"
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
        "resources": _resources(cpu, _tenth(cpu), limits.memory_bytes + _SPARE_MEMORY, disk),
        "volumeMounts": [
            {"name": "tree", "mountPath": WORKSPACE},
            {"name": "env", "mountPath": ENVIRONMENT, "readOnly": not setup.env_writable},
            {"name": "config", "mountPath": "/opt/config", "readOnly": True},
            *(
                {"name": one, "mountPath": inside, "readOnly": True}
                for one, inside in visible_folders(setup).items()
            ),
            {"name": f"link-{name}", "mountPath": "/link"},
            {"name": f"tmp-{name}", "mountPath": "/tmp"},  # noqa: S108 - inside the container
            {"name": f"shm-{name}", "mountPath": "/dev/shm"},  # noqa: S108 - inside the container
        ],
    }


def _tenth(cpu: str) -> str:
    millis = Decimal(cpu.removesuffix("m")) * (1 if cpu.endswith("m") else 1000)
    return f"{max(1, int(millis / 10))}m"


def _resources(cpu: str, asked: str, memory: int, disk: int) -> dict[str, Any]:
    return {
        "requests": {
            "cpu": asked,
            "memory": str(memory // 8),
            "ephemeral-storage": str(disk // 16),
        },
        "limits": {"cpu": cpu, "memory": str(memory), "ephemeral-storage": str(disk)},
    }
