"""This version continues the data of an older version's wheel, with a running deliberation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import run_server

from command import QUICK, SOLVED, Command, answer_turns_with, turn
from moothall.testing.model import ScriptedModel, phase_of, scripted_model, seat_of
from support.kube.older_images import extract_source
from support.kube.programs import Missing
from support.repos import make_sample

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).parents[2]
TASK = "task-upgraded"


class Seats:
    """Scripted seats. One is answered at once, the others once `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.answered: Counter[str] = Counter()

    async def propose(self, _body: dict[str, Any], headers: Mapping[str, str]) -> str:
        seat = seat_of(headers)
        if self.answered and seat not in self.answered:
            await self.open.wait()
        if phase_of(headers) == "propose":
            self.answered[seat] += 1
        return turn("files.append", path="src/utils.py", content=SOLVED)


@pytest_asyncio.fixture(loop_scope="session")
async def seats() -> AsyncIterator[tuple[Seats, ScriptedModel]]:
    seats = Seats()
    async with scripted_model(answer_turns_with(seats.propose)) as model:
        yield seats, model
        seats.open.set()


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    completed = subprocess.run(
        tuple(map(str, command)), cwd=cwd, check=False, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout.strip()


def install_older(folder: Path) -> Path:
    """Build the wheel of the older version, and install it into a separate environment, which
    shares the dependencies of this one. Dependencies that only the older version needs are
    downloaded. Return its interpreter. Skip the test in a shallow clone without the older version.
    """
    try:
        extract_source(folder / "source")
    except Missing as missing:
        if run("git", "rev-parse", "--is-shallow-repository") == "true":
            pytest.skip(str(missing))
        raise
    build = ("hatchling", "build", "--target", "wheel", "-d", folder / "wheels")
    run(sys.executable, "-m", *build, cwd=folder / "source")
    (wheel,) = (folder / "wheels").iterdir()
    run(sys.executable, "-m", "venv", folder / "env")
    python = folder / "env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    shared = "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (packages / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    # Only what the older version needs and this one does not.
    run(python, "-m", "pip", "install", "--quiet", wheel)
    return python


async def test_a_running_deliberation_of_an_older_version_is_finished(
    seats: tuple[Seats, ScriptedModel], tmp_path: Path
) -> None:
    script, model = seats
    python = install_older(tmp_path / "before")
    sample = make_sample(tmp_path / "sample").path
    current = Command(tmp_path / "data", model.base_url, {**QUICK, "MOOTHALL_RAY__MODE": "process"})
    # The older version finds the server of the bus on PATH: its own environment has none.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    older = Command(
        tmp_path / "data",
        model.base_url,
        QUICK | {"PYTHONPATH": "", "PATH": path},
        python=str(python),
    )
    location = subprocess.run(
        (python, "-c", "import moothall; print(moothall.__file__)"),
        env=older.environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert location.stdout.startswith(str(tmp_path / "before/env")), "the older wheel runs"
    process = await older.start(
        "deliberate", "--task-id", TASK, "Add hello_world() function to src/utils.py", cwd=sample
    )
    async with asyncio.timeout(120):
        while not script.answered:
            await asyncio.sleep(0.1)
            assert process.returncode is None, (await process.communicate())[1].decode()
        # Time to record the reply and the proposal of the first seat, while the others wait.
        await asyncio.sleep(5)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    ((first, calls),) = script.answered.items()

    script.open.set()
    async with run_server(current), asyncio.timeout(180):
        while not (details := (await current("show", TASK, "--json")).document).get("winner_id"):
            await asyncio.sleep(1)
    assert details["status"] == "COMPLETED", details
    assert script.answered[first] == calls, "a recorded model call was repeated"
    assert len(script.answered) == 3
    winner = await current("diff", TASK, cwd=sample)
    assert "hello_world" in winner.out, winner
