"""The custom resource definitions used in deploy/ (KubeRay, the Prometheus operator, snapshots),
from their Go modules.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from support import gobuilt

KUBERAY = "github.com/ray-project/kuberay/ray-operator", "1.6.0"
_FILES = {
    "RayCluster": (*KUBERAY, "config/crd/bases/ray.io_rayclusters.yaml"),
    "ServiceMonitor": (
        "github.com/prometheus-operator/prometheus-operator",
        "0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    "PrometheusRule": (
        "github.com/prometheus-operator/prometheus-operator",
        "0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "VolumeSnapshot": (
        "github.com/kubernetes-csi/external-snapshotter/client/v8",
        "8.6.0",
        "config/crd/snapshot.storage.k8s.io_volumesnapshots.yaml",
    ),
}


def files() -> list[Path]:
    """Return the definitions, for `kubectl apply --server-side`. Raises `gobuilt.Missing`."""
    return [gobuilt.module(path, version) / name for path, version, name in _FILES.values()]


@functools.cache
def schema(kind: str) -> dict[str, Any] | None:
    """Return the JSON schema of a kind, without additional properties; None if the kind is
    Kubernetes' own. Raises `gobuilt.Missing`.
    """
    if kind not in _FILES:
        return None
    path, version, name = _FILES[kind]
    definition = yaml.safe_load((gobuilt.module(path, version) / name).read_text(encoding="utf-8"))
    (stored,) = [item for item in definition["spec"]["versions"] if item["storage"]]
    json_schema: dict[str, Any] = _strict(stored["schema"]["openAPIV3Schema"])
    return json_schema


def _strict(node: Any) -> Any:
    """Return the schema as the API server applies it: an object has only the named properties, and
    `int-or-string` allows both.
    """
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {
        key: _strict(value) for key, value in node.items() if key not in {"format", "properties"}
    }
    if "properties" in node:  # the keys are names
        strict["properties"] = {name: _strict(value) for name, value in node["properties"].items()}
    if node.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    open_to_more = (
        node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    )
    if "properties" in node and not open_to_more:
        strict["additionalProperties"] = False
    return strict
