"""Temporary folders of killed processes are removed; those of living ones remain."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moothall.processes import scratch, sweep_scratch

HOLDER = """
from moothall.processes import scratch
with scratch() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_scratch_folder_is_deleted_with_its_context() -> None:
    with scratch() as folder:
        (folder / "sub").mkdir()
        assert folder.parent == Path(tempfile.gettempdir())
        sweep_scratch()
        assert folder.exists()
    assert not folder.exists()


def test_folders_of_a_killed_process_are_swept(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout
    folder = Path(holder.stdout.readline().strip())
    sweep_scratch()
    assert (folder / "file").exists(), "its owner is alive"
    holder.kill()
    holder.wait()
    sweep_scratch()
    assert not folder.exists()
