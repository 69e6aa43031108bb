"""A killed process, and the same suites as an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from moothall.sandbox import cgroups
from support.local import local
from support.ordinary import interpreter_for_all, run_as_ordinary_user

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import asyncio, sys
from pathlib import Path
from support.local import local, python

async def main():
    async with local(Path(sys.argv[1]), {"a.txt": "a"}, warm=1) as app:
        prepared = await app.prepared({"sleep": python("import time; time.sleep(600)")})
        async with app.workspaces.open(prepared, "held") as workspace:
            print("open", flush=True)
            await workspace.check("sleep")

asyncio.run(main())
"""


async def test_sigkill_leaves_no_process_no_folder_and_no_cgroup(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, env=env
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"open\n"
    time.sleep(0.5)
    children = psutil.Process(holder.pid).children(recursive=True)
    assert len(children) >= 4, "bubblewrap, the executor, the command, and the reaper"
    run = tmp_path / "data" / "run"
    (instance,) = [path.name for path in run.iterdir()]
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    ended, alive = psutil.wait_procs(children, timeout=30)
    assert (len(ended), alive) == (len(children), [])
    assert list(run.iterdir()) == []
    assert [
        str(path)
        for parent in set(cgroups.parents() or ())
        for path in parent.glob(f"*{instance}*")
    ] == []
    shutil.rmtree(tmp_path / "repo")
    async with local(tmp_path, {"a.txt": "a"}) as app:
        assert [path.name for path in run.iterdir()] == [app.workspaces.pool.folder.name]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.skipif(
    interpreter_for_all() is None, reason="no Python of this version that an ordinary user may run"
)
@pytest.mark.parametrize(
    "suite",
    [
        "tests/unit/sandbox",
        "tests/unit/workspace/test_local.py",
        "tests/e2e/test_sandbox_limits.py",
    ],
)
def test_the_suites_pass_as_an_ordinary_user(suite: str) -> None:
    code, output = run_as_ordinary_user(suite, ROOT)
    assert code == 0, output
