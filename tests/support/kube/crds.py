"""The definitions of what is not Kubernetes' own in deploy/: KubeRay's, the Prometheus operator's
and of snapshots, out of their Go modules.
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
    """Return the JSON schema of a kind, in which what is not named is refused; None: the kind is
    Kubernetes' own. Raises `gobuilt.Missing`.
    """
    if kind not in _FILES:
        return None
    path, version, name = _FILES[kind]
    said = yaml.safe_load((gobuilt.module(path, version) / name).read_text(encoding="utf-8"))
    (stored,) = [each for each in said["spec"]["versions"] if each["storage"]]
    found: dict[str, Any] = _strict(stored["schema"]["openAPIV3Schema"])
    return found


def _strict(said: Any) -> Any:
    """As the API server reads it: an object has the properties that are named, and a number or text
    may be either where it says so.
    """
    if isinstance(said, list):
        return [_strict(each) for each in said]
    if not isinstance(said, dict):
        return said
    found = {
        key: _strict(value) for key, value in said.items() if key not in {"format", "properties"}
    }
    if "properties" in said:  # whose keys are names
        found["properties"] = {name: _strict(value) for name, value in said["properties"].items()}
    if said.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    open_to_more = (
        said.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in said
    )
    if "properties" in said and not open_to_more:
        found["additionalProperties"] = False
    return found
