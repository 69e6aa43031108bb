"""Image archives without a builder: images of one or two files, and a base image made of Debian's
packages.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.kube.programs import COREDNS, Home, Missing, Say

BASE = "registry.local/debian:trixie-python"
NEEDED = ("pause", "coredns")
"""The images of a bare cluster; others are imported on demand."""
_SUITE = "trixie"
_BASE_PACKAGES = "ca-certificates,git,python3,python3-venv,procps"
_MANIFEST, _LAYER = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.layer.v1.tar+gzip",
)
_CONFIG = "application/vnd.oci.image.config.v1+json"


def make(home: Home, say: Say) -> None:
    """Create the missing archives of a bare cluster: pause, CoreDNS and the base of our images."""
    home.images.mkdir(parents=True, exist_ok=True)
    own_images = {
        "pause": ("registry.local/pause:1", home.bin / "pause", "65535:65535"),
        "coredns": (
            f"registry.local/coredns:{COREDNS.removeprefix('v')}",
            home.bin / f"coredns-{COREDNS}",
            "0:0",
        ),
    }
    for name, (tag, program, user) in own_images.items():
        archive = home.images / f"{name}.tar"
        if not archive.exists():
            write(
                archive,
                tag,
                [layer({f"/{name}": program.read_bytes()})],
                {"Entrypoint": [f"/{name}"], "User": user},
            )
    base = home.images / "debian-trixie.tar"
    if not base.exists():
        say("building the base image from Debian's packages")
        write(
            base,
            BASE,
            [debian(_BASE_PACKAGES)],
            {"Cmd": ["python3"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"]},
        )


def write(out: Path, tag: str, layers: Sequence[bytes], config: Mapping[str, Any]) -> None:
    """Write a tagged OCI archive of layers, each a tar. `config` is the configuration of its
    containers (Entrypoint, User, …).
    """
    packed = [gzip.compress(content, compresslevel=1, mtime=0) for content in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [_digest(content) for content in layers]},
        # Otherwise buildah cannot store layers built on it.
        "history": [{"created_by": "archive"} for _ in layers],
    }
    blobs = [*packed, _json(image)]
    *parts, about = ({"digest": _digest(blob), "size": len(blob)} for blob in blobs)
    named = [{"mediaType": _LAYER, **part} for part in parts]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": {"mediaType": _CONFIG, **about},
        "layers": named,
    }
    blobs.append(_json(manifest))
    names = {
        "io.containerd.image.name": tag,
        "org.opencontainers.image.ref.name": tag.rsplit(":", 1)[-1],
    }
    entry = {
        "mediaType": _MANIFEST,
        "digest": _digest(blobs[-1]),
        "size": len(blobs[-1]),
        "annotations": names,
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    files |= {f"blobs/{_digest(blob).replace(':', '/')}": blob for blob in blobs}
    draft = out.with_suffix(".draft")
    with tarfile.open(draft, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    draft.replace(out)


def debian(packages: str, suite: str = _SUITE) -> bytes:
    """Return a layer of Debian with these packages, separated by commas, and their dependencies,
    from the mirror that this machine uses. Raises `Missing`.
    """
    sources: Sequence[Path] = [
        Path("/etc/apt/sources.list.d/debian.sources"),
        Path("/etc/apt/sources.list"),
    ]
    source_list = next((source for source in sources if source.exists()), None)
    if source_list is None:
        raise Missing("no package sources in /etc/apt, from which the base image is built")
    command = ["nice", "mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"]
    command += ["--aptopt=Apt::Install-Recommends false", "--dpkgopt=path-exclude=/usr/share/man/*"]
    command += [
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
    ]
    # A partial image is rebuilt from scratch: nothing needs to be on the disk before the end, here
    # or in images built on this one.
    command += ["--dpkgopt=force-unsafe-io", suite, "-"]
    # Otherwise Java's packages cannot be set up.
    command.append('--essential-hook=mkdir -p "$1/usr/share/man/man1"')
    machine_suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    with tempfile.TemporaryDirectory() as folder:
        suite_list = Path(folder) / source_list.name
        text = source_list.read_text(encoding="utf-8")
        suite_list.write_text(re.sub(rf"\b{machine_suite}\b", suite, text), encoding="utf-8")
        command.insert(-1, str(suite_list))
        completed = subprocess.run(command, capture_output=True, check=False)
    if completed.returncode:
        raise Missing(
            "mmdebstrap could not build the base image: "
            f"{completed.stderr.decode(errors='replace')[-1200:]}"
        )
    return completed.stdout


def layer(files: Mapping[str, bytes]) -> bytes:
    """Return a layer of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name.lstrip("/"))
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
