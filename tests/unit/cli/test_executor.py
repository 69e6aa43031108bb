"""`moothall executor` starts as the first process of a container, and nowhere else."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from moothall.cli import main
from moothall.workspace.executor_connection import ExecutorConnection


def test_the_executor_command_is_refused_outside_a_container(tmp_path: Path) -> None:
    called = CliRunner(env={"MOOTHALL_DATA_DIR": str(tmp_path)}).invoke(main, ["executor"])
    assert called.exit_code == 2
    assert "is the first process of a workspace's container" in called.output
    assert "Hosts start it" in called.output


@pytest.mark.e2e
async def test_the_executor_answers_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; apt-get install bubblewrap brings it")
    place = tmp_path / "link.sock"
    visible_paths = [
        str(path)
        for path in Path("/").iterdir()
        if path.name not in {"dev", "proc", "tmp", "workspace"}
    ]
    binds = [word for path in visible_paths for word in ("--ro-bind", path, path)]
    mounts = (
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--bind",
        str(tmp_path),
        str(tmp_path),
        "--dir",
        "/workspace",
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen(1)
        listening.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            "bwrap",
            "--unshare-pid",
            "--as-pid-1",
            "--die-with-parent",
            *binds,
            *mounts,
            "--setenv",
            "MOOTHALL_DATA_DIR",
            str(tmp_path / "data"),
            "--chdir",
            "/",
            sys.executable,
            "-m",
            "moothall",
            "executor",
            str(place),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listening))
            process_end = asyncio.ensure_future(process.wait())
            await asyncio.wait(
                {accepting, process_end}, timeout=120, return_when=asyncio.FIRST_COMPLETED
            )
            assert accepting.done(), (await process.communicate())[1].decode()
            link = await ExecutorConnection.create((await accepting)[0])
            await link.ready
            link.close()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
