"""Build the wheel and the sdist of a release, check them, write the SBOM and checksums, sign the
files and tag the commit.

scripts/release [--dry-run] [--out FOLDER]     (FOLDER: dist/ by default; --dry-run: no tag)

It refuses uncommitted changes, a version that is tagged or has no section in CHANGELOG.md, and a
wire that breaks clients. It also refuses a section that says "not released" and a wire that
scripts/release-wire has not stored; a dry run only reports these two. If SIGSTORE_IDENTITY_TOKEN,
an OpenID token, is set, sigstore signs the files. Nothing is pushed or uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parent.parent
MAX_BYTES = {".whl": 5_000_000, ".gz": 8_000_000}
"""The wheel has 1.8 MB and the sdist 3.7 MB in November 2026."""
REQUIRED_FILES = ("pb/orchestrator/v1/orchestrator_pb2.py", "policies/", "py.typed", "__main__.py")
"""Files that are missing from the wheel if a build hook or an include was forgotten."""


def main() -> None:
    """Do the release. Raises `SystemExit` with the problem and its remedy."""
    parser = argparse.ArgumentParser(description="Build, check and tag a release.")
    parser.add_argument("--dry-run", action="store_true", help="everything but the tag")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty or new folder")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty: remove it, or name another folder with --out")
    version = read_version()
    check_tree(version)
    check_changelog(version, dry_run=options.dry_run)
    check_wire(dry_run=options.dry_run)
    files = build(out)
    check_sdist(files[0])
    check_wheel(files[1], version)
    files.append(write_sbom(out, version))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    sign([*files, out / "SHA256SUMS"])
    if options.dry_run:
        print(f"dry run: v{version} would be tagged; the files are in {out}")
        return
    git("tag", "--annotate", f"v{version}", "--message", f"Moothall {version}")
    print(f"tagged v{version}; the files are in {out}. Next: git push origin v{version}")


def git(*arguments: str) -> str:
    """Run git in the repository and return its output."""
    completed = subprocess.run(
        ("git", "-C", str(ROOT), *arguments), check=True, capture_output=True, text=True
    )
    return completed.stdout.strip()


def read_version() -> str:
    """Return the version in the source code."""
    text = (ROOT / "src/moothall/__init__.py").read_text(encoding="utf-8")
    return re.findall(r'(?m)^__version__ = "(.+)"$', text)[0]


def check_tree(version: str) -> None:
    """Refuse uncommitted changes and a version that is tagged."""
    if changed := git("status", "--porcelain"):
        raise SystemExit(f"there are uncommitted changes; commit or remove them:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise SystemExit(
            f"v{version} is tagged already: raise __version__ in src/moothall/__init__.py"
        )


def check_changelog(version: str, *, dry_run: bool) -> None:
    """Refuse a version without a section, and a section that says it is not released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"(?m)^## {re.escape(version)}(?: \((.*)\))?$", text)
    if heading is None:
        raise SystemExit(f"CHANGELOG.md has no section '## {version} (date)': write one")
    if heading[1] == "not released":
        refuse(
            f"section {version} of CHANGELOG.md says 'not released': write the date",
            dry_run=dry_run,
        )


def refuse(advice: str, *, dry_run: bool) -> None:
    """Refuse a release. A dry run only prints the advice, which is for just before a release."""
    if not dry_run:
        raise SystemExit(advice)
    print(f"before the release: {advice}")


def check_wire(*, dry_run: bool) -> None:
    """Refuse protos that break clients of the last release, or differ from the stored ones."""
    buf, released = Path(sys.executable).parent / "buf", ROOT / "protos/released.binpb"
    breaking = subprocess.run(
        (str(buf), "breaking", "--against", str(released)),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    if breaking.returncode:
        raise SystemExit(
            f"the wire breaks clients of the last release; only add to it:\n{breaking.stdout}"
            f"{breaking.stderr}"
        )
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "now.binpb"
        command = (str(buf), "build", "--exclude-source-info", "-o", str(now))
        subprocess.run(command, cwd=ROOT, check=True)
        if now.read_bytes() != released.read_bytes():
            refuse(
                "protos/released.binpb is not the wire of this version: run scripts/release-wire "
                "and commit the file",
                dry_run=dry_run,
            )


def build(out: Path) -> list[Path]:
    """Build the sdist from the committed files, and the wheel from the sdist. Return both."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        archive = Path(folder) / "tree.tar"
        git("archive", "--output", str(archive), "HEAD")
        unpack(archive, tree)
        sdist = hatchling(tree, "sdist", out, environment)
        unpack(sdist, Path(folder) / "sdist")
        (unpacked,) = (Path(folder) / "sdist").iterdir()
        return [sdist, hatchling(unpacked, "wheel", out, environment)]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into a new folder."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")


def hatchling(tree: Path, target: str, out: Path, environment: dict[str, str]) -> Path:
    """Build one target of a source tree and return its file."""
    before = {*out.iterdir()}
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "-d", str(out))
    completed = subprocess.run(
        command, cwd=tree, env=environment, check=False, capture_output=True, text=True
    )
    if completed.returncode:
        raise SystemExit(f"the {target} cannot be built:\n{completed.stdout}{completed.stderr}")
    (file,) = {*out.iterdir()} - before
    check_size(file)
    return file


def check_size(file: Path) -> None:
    """Refuse a file that has grown unexpectedly."""
    size, limit = file.stat().st_size, MAX_BYTES[file.suffix]
    if size > limit:
        raise SystemExit(
            f"{file.name} has {size:,} bytes, more than {limit:,}: exclude files in "
            "pyproject.toml, or raise MAX_BYTES"
        )
    print(f"{file.name}: {size:,} bytes")


def check_sdist(sdist: Path) -> None:
    """Refuse an sdist with pictures or with metadata that an index would reject."""
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        about = archive.extractfile(f"{names[0].partition('/')[0]}/PKG-INFO")
        if about is None:
            raise SystemExit(f"{sdist.name} has no PKG-INFO")
        Metadata.from_email(about.read(), validate=True)
    if pictures := [name for name in names if "/docs/pictures/" in name]:
        raise SystemExit(f"{sdist.name} contains pictures: {pictures[:3]}")


def check_wheel(wheel: Path, version: str) -> None:
    """Refuse a wheel with invalid metadata, missing files of the package, or foreign files."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"moothall-{version}.dist-info"
        try:
            metadata = Metadata.from_email(archive.read(f"{about}/METADATA"), validate=True)
        except KeyError:
            raise SystemExit(f"{wheel.name} has no {about}/METADATA") from None
        commands = archive.read(f"{about}/entry_points.txt").decode()
    if not metadata.description or metadata.description_content_type != "text/markdown":
        raise SystemExit(f"{wheel.name} has no description in Markdown")
    if "moothall = moothall.__main__:main" not in commands:
        raise SystemExit(f"{wheel.name} has no command moothall")
    tracked = {name.removeprefix("src/") for name in git("ls-files", "src/moothall").splitlines()}
    if missing := [name for name in sorted(tracked) if name not in names]:
        raise SystemExit(f"{wheel.name} lacks {missing[:5]}")
    if lacking := [
        part for part in REQUIRED_FILES if not any(n.startswith(f"moothall/{part}") for n in names)
    ]:
        raise SystemExit(f"{wheel.name} lacks {lacking} in moothall/")
    if foreign := sorted(n for n in names if not n.startswith(("moothall/", f"{about}/"))):
        raise SystemExit(f"{wheel.name} contains {foreign[:5]}, which is not part of the package")


def write_sbom(out: Path, version: str) -> Path:
    """Write the pinned dependencies of all extras as CycloneDX, and return the file."""
    pins = runpy.run_path(str(ROOT / "scripts/check_locks.py"))["read_pins"](
        ROOT / "requirements/run.txt"
    )
    file = out / f"moothall-{version}.cdx.json"
    document = runpy.run_path(str(ROOT / "scripts/sbom.py"))["python_sbom"]
    file.write_text(document("moothall", version, pins), encoding="utf-8")
    return file


def sign(files: Iterable[Path]) -> None:
    """Sign the files if an identity is given: NAME.sigstore.json next to each."""
    if not os.environ.get("SIGSTORE_IDENTITY_TOKEN"):
        print("not signed: SIGSTORE_IDENTITY_TOKEN is not set")
        return
    if find_spec("sigstore") is None:
        raise SystemExit(
            "SIGSTORE_IDENTITY_TOKEN is set, but sigstore is missing: pip install sigstore"
        )
    command = (sys.executable, "-m", "sigstore", "sign", *map(str, files))
    if subprocess.run(command, check=False).returncode:
        raise SystemExit("sigstore did not sign; its message is above")


if __name__ == "__main__":
    main()
