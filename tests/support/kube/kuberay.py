"""The KubeRay operator in the throw-away cluster: built from its Go module, installed with the manifests that lie in it."""

from __future__ import annotations

import json
import shutil

from support import gobuilt
from support.kube import archive
from support.kube.crds import KUBERAY
from support.kube.programs import Home, Say, build_go

SPACE = "ray-system"
_MODULE, _VERSION = KUBERAY
_IMAGE = f"registry.local/kuberay-operator:{_VERSION}"


def make(home: Home, say: Say) -> None:
    """Build the operator (four minutes on two cores, once) and its image's archive, unless they are there. Raises `programs.Missing`."""
    program = home.bin / f"kuberay-v{_VERSION}"
    build_go(program, "kuberay", "", say, package=_MODULE)
    out = home.images / f"kuberay-{_VERSION}.tar"
    if not out.exists():
        archive.write(
            out, _IMAGE, [archive.layer({"/manager": program.read_bytes()})], {"Entrypoint": ["/manager"], "User": "65532:65532"}
        )


def manifests(home: Home) -> str:
    """Return the folder for `kubectl apply --server-side -k`. Raises `gobuilt.Missing`."""
    folder = home.run / "kuberay"
    shutil.rmtree(folder, ignore_errors=True)
    source = gobuilt.module(_MODULE, _VERSION) / "config"
    for name in ("crd", "rbac", "manager"):
        shutil.copytree(source / name, folder / name, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):  # what lies in Go's cache is read-only
        path.chmod(0o755 if path.is_dir() else 0o644)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    image = {"name": "kuberay/operator", "newName": _IMAGE.rpartition(":")[0], "newTag": _VERSION}
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": SPACE,
        "resources": ["space.yaml", "crd", "rbac", "manager"],
        "images": [image],
    }
    (folder / "space.yaml").write_text(json.dumps(space), encoding="utf-8")
    (folder / "kustomization.yaml").write_text(json.dumps(whole), encoding="utf-8")
    return str(folder)
