"""Third-party components for the throw-away cluster, built from their Go modules and installed with
the manifests in them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import gobuilt
from support.kube import archive
from support.kube.crds import KUBERAY
from support.kube.programs import Home, Say, build_go


@dataclass(frozen=True, slots=True)
class Addon:
    """A Go program with its manifests.

    Attributes:
        name: its folder in go/.
        program: its path in the image.
        image: its name in its manifests.
        parts: folders of its module with a kustomization each.
        patches: patches of these.
    """

    name: str
    module: str
    version: str
    package: str
    program: str
    image: str
    parts: tuple[str, ...]
    space: str
    patches: tuple[Mapping[str, Any], ...] = ()

    def make(self, home: Home, say: Say) -> None:
        """Build the program (minutes, once) and its image archive if they are missing. Raises
        `programs.Missing`.
        """
        built = home.bin / f"{self.name}-v{self.version}"
        build_go(built, self.name, "", say, package=self.package)
        out = home.images / f"{self.name}-{self.version}.tar"
        if not out.exists():
            files = archive.layer({self.program: built.read_bytes()})
            archive.write(
                out, self._tag, [files], {"Entrypoint": [self.program], "User": "65532:65532"}
            )

    @property
    def _tag(self) -> str:
        return f"registry.local/{self.name}:{self.version}"

    def applied(self, home: Home) -> str:
        """Return the folder for `kubectl apply --server-side -k`. Raises `gobuilt.Missing`."""
        folder = home.run / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        source = gobuilt.module(self.module, self.version)
        names = [Path(part).name for part in self.parts]
        for name, part in zip(names, self.parts, strict=True):
            shutil.copytree(source / part, folder / name, copy_function=shutil.copyfile)
        for path in (folder, *folder.rglob("*")):  # files in Go's cache are read-only
            path.chmod(0o755 if path.is_dir() else 0o644)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.space}}
        (folder / "space.yaml").write_text(json.dumps(space), encoding="utf-8")
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.space,
            "resources": ["space.yaml", *names],
            "images": [
                {
                    "name": self.image,
                    "newName": self._tag.rpartition(":")[0],
                    "newTag": self.version,
                }
            ],
            "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(self.patches)}]
            if self.patches
            else [],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(kustomization), encoding="utf-8")
        return str(folder)


_RAY_MODULE, _RAY_VERSION = KUBERAY
RAY = Addon(
    name="kuberay",
    module=_RAY_MODULE,
    version=_RAY_VERSION,
    package=_RAY_MODULE,
    program="/manager",
    image="kuberay/operator",
    parts=("config/crd", "config/rbac", "config/manager"),
    space="ray-system",
)
_METRICS_MODULE = "sigs.k8s.io/metrics-server"
METRICS = Addon(
    name="metrics-server",
    module=_METRICS_MODULE,
    version="0.8.0",
    package=f"{_METRICS_MODULE}/cmd/metrics-server",
    program="/metrics-server",
    image="gcr.io/k8s-staging-metrics-server/metrics-server",
    parts=("manifests/base",),
    space="kube-system",
    # The kubelets' certificates are signed by the cluster's CA, which every namespace has in a
    # ConfigMap.
    patches=(
        {
            "op": "add",
            "path": "/spec/template/spec/containers/0/args/-",
            "value": "--kubelet-certificate-authority=/authority/ca.crt",
        },
        {
            "op": "add",
            "path": "/spec/template/spec/containers/0/volumeMounts/-",
            "value": {"name": "authority", "mountPath": "/authority"},
        },
        {
            "op": "add",
            "path": "/spec/template/spec/volumes/-",
            "value": {"name": "authority", "configMap": {"name": "kube-root-ca.crt"}},
        },
    ),
)
