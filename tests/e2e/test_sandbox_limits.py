from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolStatus
from moothall.workspace.executor_connection import parse_check_run
from support.local import local, python

HOGS = {
    "memory": "held = []\nwhile True: held.append(bytearray(b'x' * 4_000_000))",
    "cpu": "while True: pass",
    "timeout": "import time; time.sleep(600)",
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "output": "while True: print('x' * 1000)",
    "disk": "f = open('big', 'wb')\nwhile True: f.write(bytes(1_000_000))",
}
MORE = {
    "disk": (
        "import os\nfor n in range(10_000): open(f'f{n}', 'wb').write(bytes(900_000))\nimport "
        "time; time.sleep(60)"
    ),
    "memory": (
        "import os, time\nfor n in range(8):\n    if os.fork() == 0:\n        b = b'x' * "
        "30_000_000\n        time.sleep(60)\ntime.sleep(60)"
    ),
    "cpu": (
        "import os, time\nfor n in range(4):\n    if os.fork() == 0:\n        while True: pass\n"
        "time.sleep(60)"
    ),
    "processes": (
        "import threading, time\nfor n in range(100): threading.Thread(target=time.sleep, "
        "args=(60,)).start()"
    ),
}
pytestmark = pytest.mark.e2e
CASES = [*HOGS.items(), *MORE.items()]


@pytest.mark.parametrize(
    ("status", "code"), CASES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CASES)]
)
async def test_each_limit_has_its_own_status_and_a_neighbour_keeps_working(
    tmp_path: Path, status: str, code: str
) -> None:
    limits: dict[str, Any] = {
        "cpu_seconds": 1,
        "wall_seconds": 2.5 if status == "timeout" else 20,
        "memory_bytes": 512_000_000 if status == "processes" else 128_000_000,
        "processes": 40,
        "disk_bytes": 8_000_000,
    }
    if status != "cpu":
        limits["cpu_seconds"] = 15
    if status == "timeout":
        limits["wall_seconds"] = 0.5
    async with local(tmp_path, {"a.txt": "a\n"}, **limits) as app:
        hog = await app.prepared({"run": python(code)})
        fine = await app.prepared({"run": python("print('worked')")})

        async def run(prepared: Prepared, name: str) -> CheckRun:
            async with app.workspaces.open(prepared, name) as workspace:
                argv, env = prepared.base.profile.checks["run"], workspace._executor.variables()
                first = parse_check_run(
                    "run",
                    await workspace._executor.request("run", wall_seconds=100, argv=argv, env=env),
                )
                assert (
                    await app.call(workspace, "files.read", path="a.txt")
                ).status is ToolStatus.SUCCESS
                return first

        async with asyncio.TaskGroup() as group:
            hog_task = group.create_task(run(hog, "hog"))
            fine_task = group.create_task(run(fine, "fine"))
    assert (hog_task.result().status, hog_task.result().verdict) == (status, Verdict.ERRORED)
    assert (fine_task.result().status, fine_task.result().output) == ("success", "worked\n")
    assert len(hog_task.result().output) < 210_000


async def test_long_output_is_cut_in_the_middle(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": "a\n"}) as app:
        prepared = await app.prepared({"run": python("print('begin', 'x' * 400_000, 'end')")})
        async with app.workspaces.open(prepared, "long") as workspace:
            run = await workspace.check("run")
    assert (run.status, run.verdict) == ("success", Verdict.PASSED)
    assert run.output.startswith("begin xxx")
    assert run.output.endswith("xxx end\n")
    assert "bytes cut" in run.output
    assert len(run.output) < 200_100
