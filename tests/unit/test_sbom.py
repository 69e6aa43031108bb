"""scripts/sbom.py lists what is installed in an image: here one made of this machine's own package
records.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from support.kube.archive import layer, write

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

SCRIPT = Path(__file__).parents[2] / "scripts/sbom.py"
STATUS = """Package: gone-again
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: of several lines
 Package: not-this-one

"""


def sbom(archive: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, archive], capture_output=True, text=True, check=False
    )


def component_names(document: str) -> set[str]:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    return {component["purl"] for component in json.loads(document)["components"]}


def metadata(name: str, version: str) -> bytes:
    return (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nName: not-this-one\n".encode()
    )


def test_the_sbom_lists_the_contents_of_the_final_layer(tmp_path: Path) -> None:
    venv = "opt/venv/lib/python3.11/site-packages"
    lower = {
        "usr/lib/os-release": b'NAME="Debian"\nID=debian\n',
        "var/lib/dpkg/status": STATUS.replace("u10", "u9").encode(),
        f"{venv}/Old_Name-1.dist-info/METADATA": metadata("Old_Name", "1"),
        f"{venv}/replaced-1.dist-info/METADATA": metadata("replaced", "1"),
        "srv/whole/a-1.dist-info/METADATA": metadata("a", "1"),
    }
    upper = {
        "./var/lib/dpkg/status": STATUS.encode(),
        f"{venv}/.wh.replaced-1.dist-info": b"",
        f"{venv}/replaced-2.dist-info/METADATA": metadata("replaced", "2"),
        "srv/whole/.wh..wh..opq": b"",
        "srv/whole/b-1.dist-info/METADATA": metadata("b", "1"),
    }
    config = {"Env": ["PATH=/usr/bin", "PYTHON_VERSION=3.11.7"]}
    write(
        tmp_path / "image.tar", "registry.local/an-image:dev", [layer(lower), layer(upper)], config
    )
    result = sbom(tmp_path / "image.tar")
    assert result.returncode == 0, result.stderr
    assert component_names(result.stdout) == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:generic/python@3.11.7",
        "pkg:pypi/b@1",
        "pkg:pypi/old-name@1",
        "pkg:pypi/replaced@2",
    }
    assert (
        json.loads(result.stdout)["metadata"]["component"]["name"] == "registry.local/an-image:dev"
    )


@pytest.mark.e2e  # queries the tools of the whole machine
def test_the_sbom_of_this_machine_agrees_with_its_own_tools(tmp_path: Path) -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("no dpkg on this machine: this test requires Debian")
    status = Path("/var/lib/dpkg/status")
    library = Path(sys.prefix) / "lib"
    files = {str(status): status.read_bytes()}
    files |= {
        f"opt/{path.relative_to(library)}": path.read_bytes()
        for path in library.rglob("*.dist-info/METADATA")
    }
    write(tmp_path / "image.tar", "a:1", [layer(files)], {})
    components = json.loads(sbom(tmp_path / "image.tar").stdout)["components"]
    completed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    installed = [
        line.split()[1:] for line in completed.stdout.splitlines() if line.startswith("installed ")
    ]
    debian = {
        (item["name"], item["version"])
        for item in components
        if item["purl"].startswith("pkg:deb/")
    }
    assert debian == {(name, version) for name, version in installed}
    python = {
        (item["name"], item["version"])
        for item in components
        if item["purl"].startswith("pkg:pypi/")
    }
    for item in ("pytest", "ray", "grpcio"):
        assert (item, importlib.metadata.version(item)) in python


def behind_an_index(archive: Path, out: Path) -> None:
    """Return an archive as Docker saves an image with attestations: the image is one of two entries
    of an index, which the archive names.
    """
    with tarfile.open(archive) as source:
        blobs = {item.name: file.read() for item in source if (file := source.extractfile(item))}
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    attestation = {**entry, "platform": {"architecture": "unknown", "os": "unknown"}}
    between = json.dumps({"schemaVersion": 2, "manifests": [entry, attestation]}).encode()
    digest = f"sha256:{hashlib.sha256(between).hexdigest()}"
    blobs[f"blobs/{digest.replace(':', '/')}"] = between
    blobs["index.json"] = json.dumps(
        {"schemaVersion": 2, "manifests": [{**entry, "digest": digest}]}
    ).encode()
    out.write_bytes(layer(blobs))


def test_a_nested_image_index_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "image.tar", "a:1", [layer({"var/lib/dpkg/status": STATUS.encode()})], {})
    behind_an_index(tmp_path / "image.tar", tmp_path / "indexed.tar")
    result = sbom(tmp_path / "indexed.tar")
    assert result.returncode == 0, result.stderr
    assert component_names(result.stdout) == {"pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"}


def test_a_file_that_is_no_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"nothing")
    result = sbom(tmp_path / "x.tar")
    assert result.returncode == 1
    assert "is not an OCI archive of one image" in result.stderr
