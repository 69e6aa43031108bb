"""A deployment by role in the throw-away cluster, installed by the chart: api, collector, tools and
hosts on three bus servers and a Neo4j.

Its volumes are folders of this machine, which every node sees. They stand in for a storage class
that many nodes can mount, and have its name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.events.nats.accounts import create_account_files
from support import gobuilt
from support.kube import WORKER, keys
from support.kube.neo4j import IMAGE as NEO4J
from support.kube.programs import Home

SPACE = f"house{WORKER}"
WORKSPACES = f"{SPACE}-workspaces"
TOKEN, PASSWORD = "token-of-the-server-in-the-cluster", "password-of-its-graph"
CLASS = "folders-of-this-machine"
_CHART = Path(__file__).parents[3] / "deploy/helm/moothall"
CLAIMS = {
    "moothall-shared": 1000,
    "data-nats-0": 1000,
    "data-nats-1": 1000,
    "data-nats-2": 1000,
    "data-neo4j-0": 7474,
}
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OURS = "registry.local/moothall:dev"
_SMALL = {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the deployment's volumes."""

    root: Path

    @property
    def shared(self) -> Path:
        """The folder that its pods have at /data."""
        return self.root / "moothall-shared"

    def make(self) -> None:
        """Create the folders empty, each owned by its user: volumes of this kind get no owner from
        the cluster.
        """
        shutil.rmtree(self.root, ignore_errors=True)
        for name, owner in CLAIMS.items():
            (self.root / name).mkdir(parents=True)
            os.chown(self.root / name, owner, owner)

    def volumes(self) -> list[dict[str, Any]]:
        """Return the PersistentVolumes, each for the claim that it is named after."""
        return [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{SPACE}-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": SPACE, "name": name},
                    "hostPath": {"path": str(self.root / name)},
                },
            }
            for name in CLAIMS
        ]


def places(folders: Folders) -> str:
    """Return the namespace and its volumes, for `kubectl apply`."""
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": SPACE, "labels": _RESTRICTED},
        },
        # Let the scheduler bind claims: otherwise a pod whose claim is bound just during its first
        # attempt waits for five minutes.
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        *folders.volumes(),
    ]
    return _as_list(objects)


def secrets(home: Home, folder: Path) -> str:
    """Return the Secrets that must exist before the chart, for `kubectl apply`. `folder` receives
    keys.
    """
    bus = create_account_files(folder / "bus")
    certificate(home, SPACE)
    values = {
        "nats-accounts": {"accounts.conf": bus["accounts.conf"].read_text(encoding="utf-8")},
        "moothall-bus": {name: path.read_text(encoding="utf-8") for name, path in bus.items()},
        "moothall": {"MOOTHALL_GRPC__TOKEN": TOKEN, "MOOTHALL_GRAPH__PASSWORD": PASSWORD},
        "moothall-tls": {
            f"tls.{end}": (home.keys / f"{SPACE}.{end}").read_text(encoding="utf-8")
            for end in ("crt", "key")
        },
        "neo4j": {"NEO4J_AUTH": f"neo4j/{PASSWORD}"},
    }
    kinds = {"moothall-tls": "kubernetes.io/tls"}
    return _as_list(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": SPACE},
            "type": kinds.get(name, "Opaque"),
            "stringData": data,
        }
        for name, data in values.items()
    )


def certificate(home: Home, name: str) -> None:
    """Create NAME.crt and NAME.key for the server's endpoints among the cluster's keys if they are
    missing.
    """
    keys.certificate(
        home.keys,
        name,
        "moothall",
        alternative_names=tuple(f"{service}.{SPACE}" for service in ("moothall", "moothall-tools")),
    )


def _as_list(objects: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def values(model: str, *, ray: bool = False, **settings: str) -> dict[str, Any]:
    """Return the chart's values: all roles, small; with `ray`, hosts on a RayCluster. `settings`
    are more values, by variable.
    """
    volume = {"size": "1Gi", "className": CLASS}
    return {
        "images": {
            "moothall": OURS,
            "nats": OURS,
            "workspace": "registry.local/moothall-workspace:dev",
            "neo4j": NEO4J,
        },
        "secrets": {"tls": "moothall-tls"},
        "roles": {"enabled": True},
        "services": {"resources": _SMALL, "storage": volume},
        "nats": {"storage": volume},
        "neo4j": {
            "enabled": True,
            "heap": "512m",
            "resources": {**_SMALL, "limits": {"memory": "3Gi"}},
            "storage": volume,
        },
        "hosts": {
            "enabled": ray,
            "resources": {
                "requests": {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
                "limits": {"memory": "4Gi"},
            },
        },
        "workspaces": {"namespace": WORKSPACES},
        "model": {"url": model},
        "settings": {
            "MOOTHALL_WORKSPACE__WARM": "0",
            "MOOTHALL_JOBS__CPU": "1",
            "MOOTHALL_SANDBOX__MEMORY_BYTES": "600000000",
            **settings,
        },
    }


def install(home: Home, values: Mapping[str, Any]) -> str:
    """Install or upgrade the chart with these values, as in docs/operating.md; return Helm's
    output. Raises `Missing`.
    """
    helm = gobuilt.program("helm")
    command = [
        str(helm),
        f"--kubeconfig={home.admin}",
        "upgrade",
        "--install",
        "moothall",
        str(_CHART),
        f"--namespace={SPACE}",
    ]
    completed = subprocess.run(
        [*command, "--values=-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if completed.returncode:
        raise gobuilt.Missing(f"helm upgrade --install: {completed.stderr.strip()[-1500:]}")
    return completed.stdout


def uninstall(home: Home) -> None:
    """Remove the release. Claims, which the chart keeps, are deleted with the namespace."""
    command = [
        str(gobuilt.program("helm")),
        f"--kubeconfig={home.admin}",
        "uninstall",
        "moothall",
        f"--namespace={SPACE}",
    ]
    subprocess.run(command, capture_output=True, check=False, timeout=120)
