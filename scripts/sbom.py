"""Writes what an image holds as CycloneDX 1.6, out of its OCI archive: Debian's packages, Python's,
and the base's own Python.

scripts/sbom.py ARCHIVE > SBOM.json     (scripts/images --save does it for each image)
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


def wanted(name: str) -> bool:
    """Whether a file says what is installed."""
    return name == _DPKG or name in _RELEASE or name.endswith(_PYTHON)


def files(archive: tarfile.TarFile, layers: Iterable[str]) -> dict[str, str]:
    """Return the files that say what is installed, as the last layer leaves them."""
    found: dict[str, str] = {}
    for layer in layers:
        added: dict[str, str] = {}
        with tarfile.open(fileobj=_blob(archive, layer)) as tar:
            for member in tar:
                name = posixpath.normpath(member.name).lstrip("/")
                folder, last = posixpath.split(name)
                if last == ".wh..wh..opq":
                    found = {
                        path: text
                        for path, text in found.items()
                        if not path.startswith(f"{folder}/")
                    }
                elif last.startswith(".wh."):
                    gone = posixpath.join(folder, last.removeprefix(".wh."))
                    found = {
                        path: text
                        for path, text in found.items()
                        if path != gone and not path.startswith(f"{gone}/")
                    }
                elif wanted(name) and (
                    file := tar.extractfile(member) if member.isfile() else None
                ):
                    added[name] = file.read().decode("utf-8", errors="replace")
        found |= added
    return found


def components(said: Mapping[str, str], python: str | None) -> Iterator[Component]:
    """Yield the packages that the files name."""
    release = next((said[name] for name in _RELEASE if name in said), "")
    distribution = next(
        (line[3:].strip('"') for line in release.splitlines() if line.startswith("ID=")), "debian"
    )
    for paragraph in said.get(_DPKG, "").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            url = PackageURL(
                "deb",
                distribution,
                fields["Package"],
                fields["Version"],
                {"arch": fields["Architecture"]},
            )
            yield component(url)
    for name, text in said.items():
        if name.endswith(_PYTHON):
            fields = HeaderParser().parsestr(text)
            yield component(
                PackageURL(
                    "pypi", None, fields["Name"].lower().replace("_", "-"), fields["Version"]
                )
            )
    if python:
        yield component(PackageURL("generic", None, "python", python))


def component(url: PackageURL) -> Component:
    """Return a package as a component."""
    return Component(
        name=url.name,
        version=url.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=url.to_string(),
    )


def sbom(path: Path) -> str:
    """Return the document of an archive. Raises `SystemExit` with what is wrong with it."""
    try:
        with tarfile.open(path) as archive:
            named, manifest = image(archive)
            config = _json(archive, manifest["config"]["digest"])
            said = files(archive, [layer["digest"] for layer in manifest["layers"]])
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise SystemExit(
            f"{path} is no OCI archive of one image (docker save of Docker 25, podman, buildah): "
            f"{error}"
        ) from error
    variables = dict(each.split("=", 1) for each in config["config"].get("Env", ()))
    bom = Bom(
        components={
            each.bom_ref.value: each for each in components(said, variables.get("PYTHON_VERSION"))
        }.values()
    )
    about = named.get("annotations", {})
    name = about.get("io.containerd.image.name", path.stem)
    bom.metadata.component = Component(
        name=name, version=named["digest"], type=ComponentType.CONTAINER
    )
    return JsonV1Dot6(bom).output_as_string(indent=1)


def python_sbom(name: str, version: str, pins: Mapping[str, str]) -> str:
    """Return the CycloneDX document of a Python package and its pinned dependencies."""
    needed = [component(PackageURL("pypi", None, *pin)) for pin in sorted(pins.items())]
    bom = Bom(components=needed)
    bom.metadata.component = component(PackageURL("pypi", None, name, version))
    bom.register_dependency(bom.metadata.component, needed)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def image(archive: tarfile.TarFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entry that names the image, and its manifest: the one that is no attestation,
    where there is an index between.
    """
    (named,) = _json(archive, "index.json")["manifests"]
    found = _json(archive, named["digest"])
    while "manifests" in found:
        (entry,) = [
            each for each in found["manifests"] if each.get("platform", {}).get("os") != "unknown"
        ]
        found = _json(archive, entry["digest"])
    return named, found


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.load(_blob(archive, name))
    return said


def _blob(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(f"blobs/{name.replace(':', '/')}" if ":" in name else name)
    if file is None:
        raise KeyError(name)
    return file


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.stdout.write(sbom(Path(sys.argv[1])) + "\n")
