"""A repository with a file of a gigabyte: pinned, prepared and used without holding it in
memory.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from pathlib import Path

import pytest

from command import git
from moothall.app.command_repository import register
from moothall.app.workspaces import open_workspace_services
from moothall.cli.demo import make_sample_repository
from moothall.domain.evidence import Verdict
from moothall.settings import load_settings

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

GIGABYTE = 1_000_000_000


async def test_a_file_of_a_gigabyte_is_handled_without_holding_it_in_memory(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    (repo / "big.bin").touch()
    os.truncate(repo / "big.bin", GIGABYTE)
    git(repo, "-c", "core.compression=1", "add", "big.bin")
    git(repo, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "a gigabyte")
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = load_settings(data_dir=tmp_path / "data")
    ref = await register(settings, str(repo), "")
    async with open_workspace_services(settings) as services:
        prepared = await services.repositories.prepare(await services.repositories.resolve(ref))
        assert "big.bin" in prepared.files
        async with services.workspaces.open(prepared, "large") as workspace:
            run = await workspace.check("tests")
            assert run.verdict == Verdict.FAILED  # the sample's own check: it ran
            patch = await workspace.patch("nothing")
            assert patch.diff == ""
    await asyncio.to_thread(shutil.rmtree, tmp_path)  # pytest would keep it for three runs
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert grown < 400_000, f"{grown} KB more at the peak"
