"""Many concurrent checks on one machine: healthy code passes on a busy machine, and hanging code
ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Prepared
from moothall.domain.tool import CodeBlock, ToolResult, ToolStatus
from moothall.ranking.failures import hit_limit_under_load
from moothall.sandbox.bubblewrap import interpreter
from support.local import PYTEST, Local, local, python

pytestmark = pytest.mark.e2e
AT_ONCE = 24
BURN = """
import time

def test_burn():
    end = time.process_time() + 1
    while time.process_time() < end:
        pass
"""
BELOW = """
import subprocess, sys, unittest

class TestBelow(unittest.TestCase):
    def test_below(self):
        code = "import time\\nwhile time.process_time() < 0.3: pass"
        for _ in range(3):
            subprocess.run([sys.executable, "-c", code], check=True)
"""
UNITTEST = (str(interpreter()), "-m", "unittest")


@asynccontextmanager
async def busy_machine(processes: int) -> AsyncIterator[None]:
    """Keep the machine busy with processes that take no slot."""
    load_processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in load_processes:
            process.kill()
            await process.wait()


async def check_afresh(app: Local, prepared: Prepared, name: str) -> CheckRun:
    async with app.workspaces.open(prepared, name) as workspace:
        return await workspace.check("tests")


async def checks_at_once(
    app: Local, command: Sequence[str], count: int = AT_ONCE
) -> list[CheckRun]:
    prepared = await app.prepared({"tests": tuple(command)})
    ready = replace(prepared, runs={"tests": await check_afresh(app, prepared, "base")})
    assert ready.runs["tests"].verdict is Verdict.PASSED
    return await asyncio.gather(
        *(check_afresh(app, ready, f"w{number}") for number in range(count))
    )


@pytest.mark.parametrize(
    ("cores", "command", "tests"),
    [(0, PYTEST, BURN), (AT_ONCE, PYTEST, BURN), (AT_ONCE, UNITTEST, BELOW)],
)
async def test_concurrent_checks_pass_on_a_healthy_base(
    tmp_path: Path, cores: int, command: Sequence[str], tests: str
) -> None:
    """With slots, and without slots by the time limits of cases alone."""
    async with local(
        tmp_path, {"tests/__init__.py": "", "tests/test_a.py": tests}, cores=cores
    ) as app:
        runs = await checks_at_once(app, command)
    assert [(run.verdict, run.details) for run in runs] == [(Verdict.PASSED, {})] * AT_ONCE


async def test_hosts_of_several_data_directories_share_the_slots(tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()
    async with (
        local(tmp_path / "one", {"a.txt": ""}, cores=2) as first_app,
        local(tmp_path / "two", {"a.txt": ""}, cores=2) as second_app,
    ):
        max_running = 0

        async def check(app: Local, prepared: Prepared, name: str) -> CheckRun:
            async with app.workspaces.open(prepared, name) as workspace:
                return await workspace.check("run")

        async def count_running() -> None:
            nonlocal max_running
            while True:
                paths = [
                    path
                    for path in Path("/proc").glob("[0-9]*/cmdline")
                    if b"time.sleep(0.321)" in _read(path)
                ]
                max_running = max(max_running, len({_namespace(path) for path in paths}))
                await asyncio.sleep(0.01)

        looking = asyncio.create_task(count_running())
        ready = [
            (app, await app.prepared({"run": python("import time; time.sleep(0.321)")}))
            for app in (first_app, second_app)
        ]
        runs = await asyncio.gather(
            *(check(app, prepared, f"w{n}") for n in range(4) for app, prepared in ready)
        )
        looking.cancel()
    assert [run.verdict for run in runs] == [Verdict.PASSED] * 8
    assert 1 <= max_running <= 2


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _namespace(path: Path) -> str:
    try:
        return str((path.parent / "ns" / "pid").readlink())
    except OSError:
        return ""


HANGS = (
    "import time\n\ndef test_sleeps():\n    time.sleep(600)\n\ndef test_loops():\n    while "
    "True:\n        pass\n\ndef test_fine():\n    pass\n"
)


async def test_a_hanging_check_ends_on_a_busy_machine_too(tmp_path: Path) -> None:
    async with local(tmp_path, {"tests/test_a.py": HANGS}) as app:
        quick = app.settings.workspace.model_copy(update={"check_floor_seconds": 24.0})
        app.workspaces._settings = app.settings.model_copy(update={"workspace": quick})
        prepared = await app.prepared({"tests": PYTEST})
        base = CheckRun(
            "tests", Verdict.PASSED, {"t": "passed"}, duration_ms=100, durations={"t": 10}
        )
        async with busy_machine(4 * (os.cpu_count() or 1)):
            run = await check_afresh(app, replace(prepared, runs={"tests": base}), "a")
    at = "tests/test_a.py::test_"
    assert run.cases == {f"{at}sleeps": "failed", f"{at}loops": "failed", f"{at}fine": "passed"}
    assert "hit the limit of 4 s" in run.details[f"{at}sleeps"]
    assert not hit_limit_under_load(run), (
        "both had their time: one computed, the other used no core"
    )


async def test_a_block_releases_its_slot_while_it_waits_for_a_tool_that_needs_one(
    tmp_path: Path,
) -> None:
    async with local(tmp_path, {"tests/test_a.py": "def test_a():\n    pass\n"}, cores=1) as app:
        prepared = await app.prepared({"tests": PYTEST})
        async with app.workspaces.open(prepared, "one") as workspace:

            async def ask(name: str, arguments: Mapping[str, Any]) -> ToolResult:
                return await app.call(workspace, name, **arguments)

            code = "[tests.pytest()['verdict'], tests.pytest()['passed']]"
            block = CodeBlock(
                code, {"tests.pytest": ()}, datetime.now(UTC) + timedelta(seconds=120), "local"
            )
            run = await workspace.run_code(block, ask)
    assert (run.status, run.value) == (ToolStatus.SUCCESS, ["passed", 1])


PROCESS = """
import asyncio, sys
from pathlib import Path
from test_load import BURN, PYTEST, checks_at_once, local

async def main(folder):
    async with local(folder, {"tests/test_a.py": BURN}) as app:
        print(*(run.verdict for run in await checks_at_once(app, PYTEST, 8)))

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_concurrent_checks_of_three_processes_pass(
    tmp_path: Path,
) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROCESS,
            str(tmp_path / str(number)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(3)
    ]
    verdicts = [(await process.communicate())[0].decode().split() for process in processes]
    assert verdicts == [["passed"] * 8] * 3


async def test_the_time_limit_of_a_check_starts_when_it_has_a_slot(tmp_path: Path) -> None:
    async with local(tmp_path, {"a.txt": ""}, cores=1) as app:
        quick = await app.prepared({"tests": python("import time; time.sleep(2)")})
        endless = await app.prepared({"tests": python("import time; time.sleep(600)")})
        async with (
            app.workspaces.open(quick, "quick") as quick_workspace,
            app.workspaces.open(endless, "endless") as endless_workspace,
        ):
            short = app.settings.workspace.model_copy(update={"check_floor_seconds": 0.75})
            endless_workspace._settings = app.settings.model_copy(update={"workspace": short})
            runs = await asyncio.gather(
                quick_workspace.check("tests"),
                quick_workspace.check("tests"),
                endless_workspace.check("tests"),
            )
    assert [run.status for run in runs] == ["success", "success", "timeout"]
    assert runs[-1].output.startswith("tests hit the limit of 3 s")
