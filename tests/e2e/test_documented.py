"""The blocks of the documentation that are marked `sh run`, as a reader would type them. All blocks
of a page run in one shell, beside the sample repository, with the shared model server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import groupby
from pathlib import Path

import pytest

from command import Command
from moothall.cli.demo import make_sample_repository
from support.documented import ROOT, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PAGES = {
    str(page.relative_to(ROOT)): "\n".join(block.text for block in group)
    for page, group in groupby(blocks("sh run"), lambda block: block.page)
}


@pytest.mark.parametrize("page", PAGES)
async def test_the_commands_of_a_documentation_page_run(
    command: Command, tmp_path: Path, page: str
) -> None:
    await make_sample_repository(tmp_path / "sample")
    program = tmp_path / "bin" / "moothall"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m moothall "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = command.environment()
    environment["PATH"] = f"{program.parent}{os.pathsep}{environment['PATH']}"
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    script = PAGES[page].replace("http://127.0.0.1:8000/v1", command.model_url)
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euo",
        "pipefail",
        "-c",
        script,
        cwd=tmp_path,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(240):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
