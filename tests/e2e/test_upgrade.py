"""The data directory of an older version, with a deliberation under way, is continued by this
one.
"""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import served

from command import QUICK, SOLVED, Command, scripted, turn
from moothall.testing.model import ScriptedModel, phase_of, scripted_model, seat_of
from support.repos import make_sample

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).parents[2]
BEFORE = "981759e58358"
"""The previous release; while there is none, the commit from which scripts/test-k8s upgrades."""
TASK = "task-upgraded"


class Seats:
    """Answers one seat, and the others only when `open`."""

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
    async with scripted_model(scripted(seats.propose)) as model:
        yield seats, model
        seats.open.set()


def source_of(commit: str, folder: Path) -> Path:
    """Return the folder of packages of a commit, with its generated code."""
    tree = subprocess.run(
        ("git", "-C", str(ROOT), "archive", commit), check=False, capture_output=True
    )
    if tree.returncode:
        pytest.skip(f"{commit} is not in this clone; `git fetch --unshallow` brings it")
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as files:
        files.extractall(folder, filter="data")
    subprocess.run((sys.executable, "scripts/protoc.py"), cwd=folder, check=True)
    return folder / "src"


async def test_a_deliberation_of_an_older_version_is_finished(
    seats: tuple[Seats, ScriptedModel], tmp_path: Path
) -> None:
    script, model = seats
    source = source_of(BEFORE, tmp_path / "before")
    sample = make_sample(tmp_path / "sample").path
    now = Command(tmp_path / "data", model.base_url, {**QUICK, "MOOTHALL_RAY__MODE": "process"})
    before = Command(tmp_path / "data", model.base_url, QUICK | {"PYTHONPATH": str(source)})
    where = subprocess.run(
        (sys.executable, "-c", "import moothall; print(moothall.__file__)"),
        env=before.environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(source)), "the older version runs"
    process = await before.start(
        "deliberate", "--task-id", TASK, "Add hello_world() function to src/utils.py", cwd=sample
    )
    async with asyncio.timeout(120):
        while not script.answered:
            await asyncio.sleep(0.1)
            assert process.returncode is None, (await process.communicate())[1].decode()
        # Its reply and its proposal are recorded meanwhile; the other seats wait.
        await asyncio.sleep(5)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    ((first, calls),) = script.answered.items()

    script.open.set()
    async with served(now), asyncio.timeout(180):
        while not (shown := (await now("show", TASK, "--json")).document).get("winner_id"):
            await asyncio.sleep(1)
    assert shown["status"] == "COMPLETED", shown
    assert script.answered[first] == calls, "a recorded model call was repeated"
    assert len(script.answered) == 3
    winner = await now("diff", TASK, cwd=sample)
    assert "hello_world" in winner.out, winner
