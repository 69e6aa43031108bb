"""Released source packages, fetched once by their ecosystem's own client, checked by hash and made
into git repositories.

Files added by packing (PKG-INFO, egg-info, cargo's notes) are left out and the release is tagged,
so that a repository looks like the package's origin and a version that comes from a tag is found.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from platformdirs import user_cache_path

from support.repos import Repo

LIST = Path(__file__).with_name("projects.toml")
_ADDED = ("PKG-INFO", ".cargo_vcs_info.json", "Cargo.toml.orig", ".cargo-ok")
PROGRAMS = {"python": "python3", "go": "go", "rust": "cargo", "node": "npm", "make": "make"}
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Package:
    """A released version. `hash` is the registry's: sha256 (Python, Rust), h1 (Go), sha512
    integrity (Node).

    `inside` is the part of the archive that is used, if not all of it.
    """

    ecosystem: str
    name: str
    version: str
    hash: str
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """A repository made of one package, or of several under `packages/` with additional `files`.
    `reason`: why it was chosen.
    """

    name: str
    ecosystem: str
    packages: tuple[Package, ...]
    reason: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def projects(listed: Path = LIST) -> list[Project]:
    """Return a list of projects, in its order."""
    entries = tomllib.loads(listed.read_text(encoding="utf-8"))
    return [
        Project(
            name,
            entry["ecosystem"],
            tuple(
                _package(item, name, entry["ecosystem"]) for item in entry.get("packages", [entry])
            ),
            entry.get("why", ""),
            entry.get("files", {}),
        )
        for name, entry in entries.items()
    ]


def _package(entry: Mapping[str, Any], name: str, ecosystem: str) -> Package:
    return Package(
        entry.get("ecosystem", ecosystem),
        entry.get("name", name),
        entry["version"],
        entry["hash"],
        entry.get("inside", ""),
    )


def cache_folder() -> Path:
    """Return the package cache: MOOTHALL_REPOSITORIES_CACHE, or a folder in the user's cache."""
    return Path(
        os.environ.get("MOOTHALL_REPOSITORIES_CACHE")
        or user_cache_path("moothall") / "repositories"
    )


def make_repository(project: Project, folder: Path) -> Repo:
    """Make `folder` a repository with the project's sources in one tagged commit. Raises
    `LookupError` if a hash differs.
    """
    folder.mkdir(parents=True)
    for package in project.packages:
        target = folder / "packages" / package.name.rpartition("/")[2] if project.files else folder
        unpack(fetch(package), target, package.inside)
    repo = Repo(folder)
    repo.write(project.files)
    repo.git("init", "--quiet")
    repo.commit(message=f"{project.name} {project.packages[0].version}")
    repo.git("tag", f"v{project.packages[0].version.removeprefix('v')}")
    return repo


def fetch(package: Package) -> Path:
    """Return the package's archive from the cache; fetch it first if it is missing."""
    cached = (
        cache_folder()
        / package.ecosystem
        / f"{package.name.replace('/', '_')}-{package.version}.archive"
    )
    if not cached.is_file() or _hash(package.ecosystem, cached) != package.hash:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            archive = {"python": _sdist, "go": _module, "rust": _crate, "node": _tarball}[
                package.ecosystem
            ](package, Path(folder))
            if (digest := _hash(package.ecosystem, archive)) != package.hash:
                raise LookupError(
                    f"{package.name} {package.version}: its hash is {digest}, projects.toml says "
                    f"{package.hash}"
                )
            making = cached.with_suffix(f".{os.getpid()}")
            shutil.copyfile(archive, making)
            making.rename(cached)
    return cached


def unpack(archive: Path, target: Path, inside: str = "") -> None:
    """Unpack an archive, or a folder `inside` it, without its common top folder and without the
    files added by packing.
    """
    with tempfile.TemporaryDirectory() as folder:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)  # noqa: S202 - its hash was checked
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        top = Path(folder)
        # Go's modules lie several folders deep.
        while len(entries := list(top.iterdir())) == 1 and entries[0].is_dir():
            top = entries[0]
        shutil.copytree(
            top / inside, target, dirs_exist_ok=True, symlinks=True, ignore=_added_by_packing
        )


def _added_by_packing(folder: str, names: list[str]) -> list[str]:
    del folder
    return [name for name in names if name in _ADDED or PurePosixPath(name).suffix == ".egg-info"]


def _sdist(package: Package, folder: Path) -> Path:
    requirements = folder / "wanted.txt"
    requirements.write_text(
        f"{package.name}=={package.version} --hash=sha256:{package.hash}\n", encoding="utf-8"
    )
    options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", str(requirements)]
    _run(sys.executable, "-m", "pip", "download", "--quiet", *options, cwd=folder)
    archives = [path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".zip"))]
    return archives[0]


def _module(package: Package, folder: Path) -> Path:
    download = json.loads(
        _run("go", "mod", "download", "-json", f"{package.name}@{package.version}", cwd=folder)
    )
    return Path(download["Zip"])


def _crate(package: Package, folder: Path) -> Path:
    (folder / "src").mkdir()
    (folder / "src/lib.rs").touch()
    manifest = (
        '[package]\nname = "fetching"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n'
        f'{package.name} = "={package.version}"\n'
    )
    (folder / "Cargo.toml").write_text(manifest, encoding="utf-8")
    _run("cargo", "fetch", "--quiet", cwd=folder)
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    return next(home.glob(f"registry/cache/*/{package.name}-{package.version}.crate"))


def _tarball(package: Package, folder: Path) -> Path:
    packed = json.loads(
        _run("npm", "pack", "--silent", "--json", f"{package.name}@{package.version}", cwd=folder)
    )
    return folder / str(packed[0]["filename"]).replace("@", "").replace("/", "-")


def _hash(ecosystem: str, archive: Path) -> str:
    if ecosystem == "go":
        return _go_hash(archive)
    if ecosystem == "node":
        return f"sha512-{base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()}"
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def _go_hash(archive: Path) -> str:
    """Return the hash as in go.sum: the sha256 of the list of the files' hashes."""
    with zipfile.ZipFile(archive) as zipped:
        lines = [
            f"{hashlib.sha256(zipped.read(name)).hexdigest()}  {name}\n"
            for name in sorted(zipped.namelist())
        ]
    return f"h1:{base64.b64encode(hashlib.sha256(''.join(lines).encode()).digest()).decode()}"


def _run(program: str, *arguments: str, cwd: Path) -> str:
    command = [shutil.which(program) or program, *arguments]
    completed = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if completed.returncode:
        raise LookupError(f"{' '.join(command)}: {completed.stderr[-1000:]}")
    return completed.stdout
