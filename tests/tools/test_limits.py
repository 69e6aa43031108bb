"""Each limit, reached by a tool call: the call ends with the status of the limit, is measured and
logged, and a neighbour keeps working.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from moothall.domain.tool import ToolResult, ToolStatus
from moothall.sandbox import cgroups
from moothall.workspace.executor_connection import log_folder
from moothall.workspace.workspace import OverlayWorkspace
from support.local import Local, local
from support.ordinary import interpreter_for_all, run_as_ordinary_user

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "memory_bytes": 256_000_000,
    "cpu_seconds": 2,
    "wall_seconds": 10,
    "processes": 64,
    "disk_bytes": 20_000_000,
}
HOGS = {
    "one-gigabyte": ("memory", "x = bytearray(1_000_000_000)\nprint(len(x))"),
    "a-gigabyte-in-parts": ("memory", "x = [bytearray(b'x' * 1_000_000) for _ in range(1000)]"),
    "spin": ("cpu", "while True: pass"),
    "spin-in-children": (
        "cpu",
        (
            "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: "
            "pass\n"
            "time.sleep(60)"
        ),
    ),
    "sleep": ("timeout", "import time\ntime.sleep(600)"),
    "ten-thousand-processes": (
        "processes",
        (
            "import os, time\nfor _ in range(10_000):\n    try:\n        if os.fork() == 0: "
            "time.sleep(60)\n    except OSError: pass"
        ),
    ),
    "threads": (
        "processes",
        (
            "import threading, time\nthreading.stack_size(1 << 18)\nfor _ in range(1000): "
            "threading.Thread(target=time.sleep, args=(60,)).start()"
        ),
    ),
    "endless-output": ("output", "while True: print('x' * 1000)"),
    "one-large-file": ("disk", "f = open('big', 'wb')\nwhile True: f.write(bytes(1_000_000))"),
    "in-a-shell": (
        "disk",
        (
            "import subprocess, sys\nsys.exit(subprocess.call(['sh', '-c', 'head -c 100000000 "
            "/dev/zero >big; exit $?']))"
        ),
    ),
    "over-before-anybody-looks": (
        "disk",
        "for n in range(30): open(f'f{n}', 'wb').write(bytes(900_000))",
    ),
    "many-files": (
        "disk",
        (
            "import time\nfor n in range(1000): open(f'f{n}', 'wb').write(bytes(900_000))\n"
            "time.sleep(60)"
        ),
    ),
}


async def neighbour_works(
    app: Local, workspace: OverlayWorkspace, until: asyncio.Task[ToolResult]
) -> int:
    """Write and read until the hog has ended."""
    calls = 0
    while not until.done() or not calls:
        wrote = await app.call(workspace, "files.write", path="n.txt", content=str(calls))
        read_back = await app.call(workspace, "code.python", code="print(open('n.txt').read())")
        assert (wrote.status, read_back.status, read_back.output["output"]) == (
            ToolStatus.SUCCESS,
            ToolStatus.SUCCESS,
            f"{calls}\n",
        )
        assert (
            min(
                wrote.usage.cpu_ms,
                wrote.usage.max_rss_bytes,
                read_back.usage.cpu_ms,
                read_back.usage.max_rss_bytes,
            )
            > 0
        )
        calls += 1
    return calls


@pytest.mark.parametrize("hog", HOGS)
async def test_a_limit_stops_with_its_own_status_beside_a_working_neighbour(
    tmp_path: Path, hog: str
) -> None:
    status, code = HOGS[hog]
    limits = {**LIMITS, **({"cpu_seconds": 60} if status in {"processes", "disk"} else {})}
    async with local(tmp_path, {"a.txt": "a\n"}, **limits) as app:
        prepared = await app.prepared()
        async with (
            app.workspaces.open(prepared, "hog") as limited,
            app.workspaces.open(prepared, "fine") as neighbour,
        ):
            seconds = 2.0 if status == "timeout" else 30.0
            running = asyncio.ensure_future(app.call(limited, "code.python", seconds, code=code))
            calls = await neighbour_works(app, neighbour, running)
            stopped = await running
            if (
                status == "disk"
                # it is still full, and a command that outlasts one sample would be stopped
                # again
            ):
                for name in (await app.call(limited, "files.list")).output["entries"]:
                    await app.call(limited, "files.delete", path=name)
            result_after = await app.call(limited, "code.python", code="print('still here')")
    assert (stopped.status, calls > 0) == (status, True), stopped
    assert min(stopped.usage.cpu_ms, stopped.usage.max_rss_bytes) > 0
    assert stopped.usage.max_rss_bytes < 2 * LIMITS["memory_bytes"]
    assert (result_after.status, result_after.output["output"]) == (
        ToolStatus.SUCCESS,
        "still here\n",
    )
    [log] = [
        path.read_text(encoding="utf-8") for path in log_folder(tmp_path / "data").glob("hog.*.log")
    ]
    first, line, last, *_ = log.splitlines()
    assert first.endswith(f"memory and processes are limited by {cgroups.describe()}")
    assert f" status={status} " in line
    assert f"max_rss_bytes={stopped.usage.max_rss_bytes}" in line
    assert " status=success exit_code=0 " in last


async def test_files_written_by_tools_count_towards_the_disk_limit(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": "a\n"}, **{**LIMITS, "disk_bytes": 1_000_000}) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "files") as workspace:
            text = "x" * 400_000
            wrote = [
                await app.call(workspace, "files.write", path=f"f{number}.txt", content=text)
                for number in range(3)
            ]
            read = await app.call(workspace, "files.read", path="a.txt")
            deleted = await app.call(workspace, "files.delete", path="f0.txt")
            second_append = await app.call(workspace, "files.append", path="a.txt", content="b\n")
    assert [result.status for result in wrote] == [
        ToolStatus.SUCCESS,
        ToolStatus.SUCCESS,
        ToolStatus.DISK,
    ]
    assert "sandbox.disk_bytes" in wrote[-1].error
    assert (read.status, deleted.status, second_append.status) == (
        ToolStatus.SUCCESS,
        ToolStatus.SUCCESS,
        ToolStatus.SUCCESS,
    )


async def test_open_files_are_limited_and_the_limit_is_reported(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": "a\n"}, **LIMITS) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "files") as workspace:
            code = "held = []\nwhile True: held.append(open('/dev/null'))"
            result = await app.call(workspace, "code.python", code=code)
            read_after = await app.call(workspace, "files.read", path="a.txt")
    assert (result.output["exit_code"], "Too many open files" in result.output["output"]) == (
        1,
        True,
    )
    assert read_after.status is ToolStatus.SUCCESS


async def test_every_result_is_measured(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": "a\n", "Makefile": "test:\n\ttrue\n"}, **LIMITS) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "measured") as workspace:
            results = [
                await app.call(workspace, "files.read", path="a.txt"),
                await app.call(workspace, "files.search", pattern="a", path=".", glob="**"),
                await app.call(workspace, "files.read", path="none"),
                await app.call(workspace, "tests.make", target="test"),
                await app.call(workspace, "system.processes"),
            ]
    assert [
        (result.tool, min(result.usage.cpu_ms, result.usage.max_rss_bytes) > 0)
        for result in results
    ] == [(result.tool, True) for result in results]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.skipif(
    interpreter_for_all() is None, reason="no Python of this version that an ordinary user may run"
)
def test_the_same_limits_are_enforced_without_cgroups() -> None:
    """An ordinary user may not write cgroups here: rlimits and a sampled process tree are used
    instead.
    """
    code, output = run_as_ordinary_user("tests/tools/test_limits.py", ROOT)
    assert code == 0, output
