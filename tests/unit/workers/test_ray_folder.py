"""A killed owner leaves nothing of its Ray behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moothall.workers.ray_setup import ray_folder, sweep

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

OWNER = """
import asyncio, subprocess, sys
from moothall.workers.ray_setup import ray_folder

async def main():
    async with ray_folder() as folder:
        (folder / "session").mkdir()
        log = open(folder / "session" / "agent.log", "wb") if sys.argv[1] == "open" else None
        named = [f"--temp-dir={folder}"] if sys.argv[1] == "named" else []
        command = ["ray::Agent" if log else "agent", "-c", "import time; time.sleep(600)", *named]
        agent = subprocess.Popen(command, executable=sys.executable, stdout=log, start_new_session=True)
        print(folder, agent.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""  # noqa: E501 - a line of embedded text


# An agent of Ray overwrites its command line with a title.
@pytest.mark.parametrize("known_by", ["named", "open"])
async def test_a_killed_owner_takes_its_processes_and_its_directory_with_it(known_by: str) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, known_by, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    folder, pid = (await owner.stdout.readline()).decode().split()
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(30):
        while Path(folder).parent.exists() or _lives(int(pid)):
            await asyncio.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return (
            "Z"
            not in Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_an_orderly_end_deletes_the_directory_and_spares_unrelated_processes() -> None:
    async with ray_folder() as folder:
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        folder.chmod(0o777)  # like Ray
        sleeping = ("-c", "import time; time.sleep(600)")
        outsider = await asyncio.create_subprocess_exec(
            sys.executable, *sleeping, f"{folder.parent}"[:-3]
        )
        (folder / "driver.log").touch()
        with (folder / "driver.log").open("rb") as log:  # like a person who reads it
            reader = await asyncio.create_subprocess_exec(sys.executable, *sleeping, stdin=log)
    assert not folder.parent.exists()
    for process in (outsider, reader):
        assert process.returncode is None
        process.send_signal(signal.SIGKILL)
        await process.wait()


OPEN_OWNER = """
import asyncio
from moothall.workers.ray_setup import ray_folder

async def main():
    async with ray_folder() as folder:
        log = open(folder / "driver.log", "wb")
    print("ended by itself", flush=True)

asyncio.run(main())
"""


async def test_an_owner_with_an_open_log_ends_by_itself() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OPEN_OWNER, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await owner.communicate()
    assert (owner.returncode, out) == (0, b"ended by itself\n")


def test_directories_of_dead_owners_are_swept_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead_owner = subprocess.Popen([sys.executable, "-c", ""])
    dead_owner.wait()
    for name in (f"mh-{dead_owner.pid}-abc", f"mh-{os.getpid()}-abc", "mh-other", "elsewhere"):
        (tmp_path / name).mkdir()
    assert sweep(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        f"mh-{os.getpid()}-abc",
        "mh-other",
        "elsewhere",
    }
