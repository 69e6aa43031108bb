"""scripts/release.py in a clone of this repository: what it writes, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from command import git
from moothall import __version__

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
VERSION = __version__


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--no-tags", "--depth", "1", f"file://{ROOT}", str(folder))
    for name, value in (("user.name", "t"), ("user.email", "t@example.org")):
        git(folder, "config", name, value)
    return folder


def release(clone: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "SIGSTORE" not in name}
    return subprocess.run(
        (sys.executable, "scripts/release.py", "--out", str(clone.parent / "out"), *options),
        cwd=clone,
        env=environment | variables,
        check=False,
        capture_output=True,
        text=True,
    )


def change(clone: Path, path: str, old: str, new: str) -> None:
    file = clone / path
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", "change")


def date_section(clone: Path) -> None:
    change(clone, "CHANGELOG.md", f"## {VERSION} (not released)", f"## {VERSION} (2026-12-01)")


def store_wire(clone: Path) -> None:
    """Do what scripts/release-wire does, with the programs of this environment."""
    buf = Path(sys.executable).parent / "buf"
    command = (str(buf), "build", "--exclude-source-info", "-o", "protos/released.binpb")
    subprocess.run(command, cwd=clone, check=True)
    git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message", "wire")


def test_a_dry_run_does_everything_but_the_tag_and_a_release_tags(clone: Path) -> None:
    completed = release(clone, "--dry-run")
    assert completed.returncode == 0, completed.stderr
    out = clone.parent / "out"
    wheel, sbom = f"moothall-{VERSION}-py3-none-any.whl", f"moothall-{VERSION}.cdx.json"
    sums = {}
    for line in (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        sums[name] = digest
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert set(sums) == {f"moothall-{VERSION}.tar.gz", wheel, sbom}
    with zipfile.ZipFile(out / wheel) as archive:
        assert "moothall/pb/orchestrator/v1/orchestrator_pb2.py" in archive.namelist()
    document = json.loads((out / sbom).read_text(encoding="utf-8"))
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/moothall@{VERSION}"
    assert any(part["name"] == "pydantic" for part in document["components"])
    assert git(clone, "tag", "--list") == ""
    assert "not signed" in completed.stdout
    assert f"before the release: section {VERSION} of CHANGELOG.md" in completed.stdout

    refused = release(clone, "--dry-run")
    assert (refused.returncode, "is not empty" in refused.stderr) == (1, True)
    for file in out.iterdir():
        file.unlink()
    date_section(clone)
    store_wire(clone)
    completed = release(clone)
    assert completed.returncode == 0, completed.stderr
    assert git(clone, "tag", "--list") == f"v{VERSION}"

    for file in out.iterdir():
        file.unlink()
    completed = release(clone)
    assert (completed.returncode, "is tagged already" in completed.stderr) == (1, True)


def test_an_unready_release_is_refused(clone: Path) -> None:
    completed = release(clone)
    assert completed.returncode == 1
    assert "says 'not released': write the date" in completed.stderr
    (clone / "new.txt").write_text("", encoding="utf-8")
    completed = release(clone, "--dry-run")
    assert (completed.returncode, "new.txt" in completed.stderr) == (1, True)
    (clone / "new.txt").unlink()
    change(clone, "src/moothall/__init__.py", f'"{VERSION}"', '"9.9.9"')
    completed = release(clone, "--dry-run")
    assert completed.returncode == 1
    assert "CHANGELOG.md has no section '## 9.9.9 (date)'" in completed.stderr
    assert not (clone.parent / "out").exists()


def test_a_breaking_or_unstored_wire_is_refused(clone: Path) -> None:
    path, rpc = "protos/orchestrator/v1/orchestrator.proto", "  rpc "
    date_section(clone)
    store_wire(clone)
    with (clone / path).open("a", encoding="utf-8") as proto:
        proto.write("message AnotherRequest {}\n")
    git(clone, "commit", "--quiet", "--all", "--message", "more")
    completed = release(clone)
    assert completed.returncode == 1
    assert "run scripts/release-wire and commit" in completed.stderr
    change(clone, path, rpc, "  rpc Renamed")
    completed = release(clone, "--dry-run")
    assert completed.returncode == 1
    assert "the wire breaks clients of the last release" in completed.stderr
    assert not (clone.parent / "out").exists()
