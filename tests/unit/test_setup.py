"""`scripts/setup` announces its downloads and their size."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.11.0"
[ "$2" = venv ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
exit 0
"""
"""An interpreter that installs nothing."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("requirements", "protos"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup", "scripts/protoc.py", "scripts/hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "bwrap").write_text("#!/bin/sh\n", encoding="utf-8")
    for name in ("python", "bwrap"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run_setup(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHON": str(project / "python"),
        "PATH": f"{project}:{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", "scripts/setup", *args],
        cwd=project,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["run", "dev"])
def test_downloads_are_announced_with_their_size(project: Path, name: str) -> None:
    result = run_setup(project, name)
    assert result.returncode == 0, result.stderr
    lock = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    count = sum("==" in line and line[:1].isalnum() for line in lock.splitlines())
    assert (
        f"pip downloads up to {count} packages of requirements/{name}.txt, about " in result.stderr
    )
    assert " MB" in result.stderr
    assert run_setup(project, name).stderr == "", "the second run creates nothing"


def test_an_unknown_environment_is_refused(project: Path) -> None:
    result = run_setup(project, "prod")
    assert (result.returncode, result.stderr) == (2, "usage: scripts/setup run|dev\n")
