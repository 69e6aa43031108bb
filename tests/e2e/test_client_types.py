"""The examples of docs/client.md under mypy and pyright, as in a program of a user."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.documented import ROOT, blocks

pytestmark = pytest.mark.e2e

WRONG = """
from moothall import Client

with Client() as client:
    outcome = client.deliberate("task", agents="two")
    print(outcome.winner)
"""
"""Wrong arguments and attributes, which both must find."""


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    for number, block in enumerate(blocks("python")):
        (tmp_path / f"example_{number}.py").write_text(block.text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) > 4
    return tmp_path


def run(*command: str | Path, cwd: Path) -> tuple[int, str]:
    completed = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    return completed.returncode, completed.stdout + completed.stderr


def run_mypy(folder: Path) -> tuple[int, str]:
    """Run mypy with the options and the cache of this repository, which are strict."""
    return run(sys.executable, "-m", "mypy", *folder.glob("*.py"), cwd=ROOT)


def run_pyright(folder: Path) -> tuple[int, str]:
    """Run basedpyright, the distribution of pyright that downloads nothing when it starts."""
    options = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    return run(sys.executable, "-m", "basedpyright", cwd=folder)


@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_the_examples_of_the_client_pass_type_checks(
    check: Callable[[Path], tuple[int, str]], examples: Path
) -> None:
    assert check(examples)[0] == 0, check(examples)[1]
    (examples / "wrong.py").write_text(WRONG, encoding="utf-8")
    code, output = check(examples)
    assert code == 1
    assert '"agents"' in output
    assert '"winner"' in output
