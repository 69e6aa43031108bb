"""Images of an older commit, as `registry.local/NAME:before`: the starting point of an upgrade.
Built once by that commit's own script.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from support.kube.archive import BASE
from support.kube.node import nodes
from support.kube.programs import Home, Missing, Say

COMMIT = "981759e58358"
"""The previous release; while there is none, a commit from about eighty commits before this
file.
"""
TAG = "before"
_ROOT = Path(__file__).parents[3]
_BUILD_SECONDS = 2400
NAMES = ("moothall", "moothall-workspace")


def give(home: Home, say: Say) -> None:
    """Import both images on every node. Raises `Missing`."""
    folder = home.root / "before" / COMMIT
    if not all((folder / f"{name}-{TAG}.tar").exists() for name in NAMES):
        say(f"building the images of {COMMIT} (once; they are cached in {folder})")
        folder.mkdir(parents=True, exist_ok=True)
        _build(home, folder)
    for node in nodes(home):
        node.give_images(say, folder=folder)


def extract_source(folder: Path) -> None:
    """Extract the files of the older commit into a folder. Raises `Missing`."""
    tree = subprocess.run(
        ("git", "-C", str(_ROOT), "archive", COMMIT), capture_output=True, check=False
    )
    if tree.returncode:
        raise Missing(
            f"{COMMIT} is not in this clone: {tree.stderr.decode().strip()}; `git fetch "
            "--unshallow` brings it"
        )
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as files:
        files.extractall(folder, filter="data")


def _build(home: Home, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        extract_source(Path(place))
        _run("buildah", "pull", "-q", f"oci-archive:{home.images}/debian-trixie.tar")
        _run(f"{place}/scripts/images", "--base", BASE, "--tag", TAG)
    for name in NAMES:
        image, draft = f"registry.local/{name}:{TAG}", folder / f"{name}.draft"
        _run("buildah", "push", "-q", image, f"oci-archive:{draft}:{image}")
        draft.replace(folder / f"{name}-{TAG}.tar")
        _run("buildah", "rmi", image)


def _run(*command: str) -> None:
    completed = subprocess.run(
        command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if completed.returncode:
        raise Missing(
            f"{' '.join(command)}: {(completed.stdout + completed.stderr).strip()[-1500:]}"
        )
