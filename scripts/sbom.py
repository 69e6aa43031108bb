"""Write the SBOM of an image as CycloneDX 1.6 from its OCI archive: Debian packages, Python
packages, and the Python of the base image.

scripts/sbom.py ARCHIVE > SBOM.json     (scripts/images --save runs it for each image)
"""

from __future__ import annotations

import json
import posixpath
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_DPKG, _PYTHON, _RELEASE = (
    "var/lib/dpkg/status",
    ".dist-info/METADATA",
    ("etc/os-release", "usr/lib/os-release"),
)


def is_package_list(name: str) -> bool:
    """Return whether a file lists installed packages or names the distribution."""
    return name == _DPKG or name in _RELEASE or name.endswith(_PYTHON)


def read_package_lists(archive: tarfile.TarFile, layers: Iterable[str]) -> dict[str, str]:
    """Return the text of the package lists by path, as of the last layer."""
    texts: dict[str, str] = {}
    for layer in layers:
        added: dict[str, str] = {}
        with tarfile.open(fileobj=_blob(archive, layer)) as tar:
            for member in tar:
                name = posixpath.normpath(member.name).lstrip("/")
                folder, last = posixpath.split(name)
                if last == ".wh..wh..opq":
                    texts = {
                        path: text
                        for path, text in texts.items()
                        if not path.startswith(f"{folder}/")
                    }
                elif last.startswith(".wh."):
                    removed = posixpath.join(folder, last.removeprefix(".wh."))
                    texts = {
                        path: text
                        for path, text in texts.items()
                        if path != removed and not path.startswith(f"{removed}/")
                    }
                elif is_package_list(name) and (
                    file := tar.extractfile(member) if member.isfile() else None
                ):
                    added[name] = file.read().decode("utf-8", errors="replace")
        texts |= added
    return texts


def find_components(texts: Mapping[str, str], python: str | None) -> Iterator[Component]:
    """Yield the packages in the package lists, and the Python of the base image."""
    release = next((texts[name] for name in _RELEASE if name in texts), "")
    distribution = next(
        (line[3:].strip('"') for line in release.splitlines() if line.startswith("ID=")), "debian"
    )
    for paragraph in texts.get(_DPKG, "").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            url = PackageURL(
                "deb",
                distribution,
                fields["Package"],
                fields["Version"],
                {"arch": fields["Architecture"]},
            )
            yield make_component(url)
    for name, text in texts.items():
        if name.endswith(_PYTHON):
            fields = HeaderParser().parsestr(text)
            yield make_component(
                PackageURL(
                    "pypi", None, fields["Name"].lower().replace("_", "-"), fields["Version"]
                )
            )
    if python:
        yield make_component(PackageURL("generic", None, "python", python))


def make_component(url: PackageURL) -> Component:
    """Return the component of a package."""
    return Component(
        name=url.name,
        version=url.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=url.to_string(),
    )


def image_sbom(path: Path) -> str:
    """Return the SBOM of an archive; raises `SystemExit` unless it has one image."""
    try:
        with tarfile.open(path) as archive:
            entry, manifest = read_manifest(archive)
            config = _json(archive, manifest["config"]["digest"])
            texts = read_package_lists(archive, [layer["digest"] for layer in manifest["layers"]])
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise SystemExit(
            f"{path} is not an OCI archive of one image (docker save of Docker 25, podman, "
            f"buildah): {error}"
        ) from error
    variables = dict(each.split("=", 1) for each in config["config"].get("Env", ()))
    bom = Bom(
        components={
            each.bom_ref.value: each
            for each in find_components(texts, variables.get("PYTHON_VERSION"))
        }.values()
    )
    annotations = entry.get("annotations", {})
    name = annotations.get("io.containerd.image.name", path.stem)
    bom.metadata.component = Component(
        name=name, version=entry["digest"], type=ComponentType.CONTAINER
    )
    return JsonV1Dot6(bom).output_as_string(indent=1)


def python_sbom(name: str, version: str, pins: Mapping[str, str]) -> str:
    """Return the CycloneDX document of a Python package and its pinned dependencies."""
    dependencies = [make_component(PackageURL("pypi", None, *pin)) for pin in sorted(pins.items())]
    bom = Bom(components=dependencies)
    bom.metadata.component = make_component(PackageURL("pypi", None, name, version))
    bom.register_dependency(bom.metadata.component, dependencies)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def read_manifest(archive: tarfile.TarFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entry of the image in the index, and its manifest, without attestations."""
    (image_entry,) = _json(archive, "index.json")["manifests"]
    manifest = _json(archive, image_entry["digest"])
    while "manifests" in manifest:
        (entry,) = [
            each
            for each in manifest["manifests"]
            if each.get("platform", {}).get("os") != "unknown"
        ]
        manifest = _json(archive, entry["digest"])
    return image_entry, manifest


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.load(_blob(archive, name))
    return document


def _blob(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(f"blobs/{name.replace(':', '/')}" if ":" in name else name)
    if file is None:
        raise KeyError(name)
    return file


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.stdout.write(image_sbom(Path(sys.argv[1])) + "\n")
