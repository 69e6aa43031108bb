"""Small projects with a bug that no test detects, each with a pool of candidates.

`tests/e2e/pools/NAME.toml` has the project, its task as a user would file it, two right changes,
two wrong ones, and tests of the right seat: in a new file and in an existing one.
`tests/recordings/pools/NAME.json` has the replies of a strong model that judged the pool.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.selection import Edit, Variant

_IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@dataclass(frozen=True, slots=True)
class Pool:
    """A project, its task, its candidates, and a test of the right seat: a new file, and edits of
    an existing one.
    """

    name: str
    program: str
    command: str
    task: str
    base: Mapping[str, str]
    candidates: tuple[Variant, ...]
    new_file: Mapping[str, str]
    test_edits: tuple[Edit, ...]

    def files(self, variant: Variant, *further: Edit) -> dict[str, str]:
        """Return the files that a candidate changes."""
        changed: dict[str, str] = {}
        for edit in (*variant.edits, *further):
            changed[edit.file] = edit.apply(changed.get(edit.file, self.base[edit.file]))
        return changed

    def skip_without_program(self) -> None:
        """Skip the test if the pool's program is not installed."""
        if shutil.which(self.program) is None:
            pytest.skip(
                f"{self.program} is not installed; apt-get install golang, nodejs npm or cargo "
                "brings it"
            )

    def create_repository(self, folder: Path) -> None:
        """Create a repository whose only commit is the project."""
        folder.mkdir()
        _git(folder, "init", "--quiet", "--initial-branch", "parent")
        _write(folder, self.base)
        _git(folder, "add", "--all")
        _git(folder, *_IDENTITY, "commit", "--quiet", "--message", "begin")

    def diff(self, folder: Path, variant: Variant) -> str:
        """Return the diff of a candidate; `folder` is the project's repository."""
        _write(folder, self.files(variant))
        try:
            return _git(folder, "diff")
        finally:
            _git(folder, "checkout", "--quiet", ".")


def read_pool(path: Path) -> Pool:
    """Return the pool in a TOML file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    test = data["test"]
    return Pool(
        path.stem,
        data["program"],
        data.get("command", ""),
        data["task"].strip(),
        data["base"],
        tuple(
            Variant(item["name"], item["kind"], tuple(Edit(**edit) for edit in item["edits"]))
            for item in data["candidates"]
        ),
        {test["file"]: test["text"]},
        tuple(Edit(**edit) for edit in test["edits"]),
    )


def dealt_candidates(pool: Pool) -> list[Variant]:
    """Return the candidates of the seats in order: a wrong one, the right one and the other wrong
    one.
    """
    right = next(item for item in pool.candidates if item.right)
    wrong_variant, other_wrong = (item for item in pool.candidates if not item.right)
    return [wrong_variant, right, other_wrong]


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _git(folder: Path, *argv: str) -> str:
    completed = subprocess.run(["git", "-C", str(folder), *argv], check=True, capture_output=True)
    return completed.stdout.decode()
