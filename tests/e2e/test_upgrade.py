"""This version continues the data directory of an older one, with a running deliberation."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import served

from command import QUICK, SOLVED, Command, scripted, turn
from moothall.testing.model import ScriptedModel, phase_of, scripted_model, seat_of
from support.kube.older_images import extract_source
from support.kube.programs import Missing
from support.repos import make_sample

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

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
    async with scripted_model(scripted(seats.propose)) as model:
        yield seats, model
        seats.open.set()


def older_source(folder: Path) -> Path:
    """Return the source folder of the older version, with its generated code."""
    try:
        extract_source(folder)
    except Missing as missing:
        pytest.skip(str(missing))
    subprocess.run((sys.executable, "scripts/protoc.py"), cwd=folder, check=True)
    return folder / "src"


async def test_a_deliberation_of_an_older_version_is_finished(
    seats: tuple[Seats, ScriptedModel], tmp_path: Path
) -> None:
    script, model = seats
    source = older_source(tmp_path / "before")
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
        # Time to record the reply and the proposal of the first seat, while the others wait.
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
