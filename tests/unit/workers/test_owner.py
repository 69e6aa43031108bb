"""A host ends with its server; the next server ends its leftovers, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from moothall.workers.owner import (
    Process,
    kill_leftover_hosts,
    process_of,
    registered,
    this_process,
)
from moothall.workers.ray_setup import sweep

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

HOST = """
import os, sys, time
from pathlib import Path
from moothall.workers.owner import Process, registered

pid, started, place, folder = sys.argv[1:5]
if sys.argv[5:] == ["without pidfds"]:
    del os.pidfd_open
with registered(Path(folder), Process(int(pid), int(started), place)):
    print("registered", flush=True)
    time.sleep(600)
"""
SHARED = """
import subprocess, sys, time
from moothall.workers.owner import this_process

me = this_process()
host = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(me.pid), str(me.started), me.place, sys.argv[2]],
                        stdout=subprocess.PIPE, start_new_session=True)
host.stdout.readline()
print(host.pid, flush=True)
time.sleep(600)
"""  # noqa: E501 - a line of embedded text


def is_alive(pid: int) -> bool:
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


@asynccontextmanager
async def app(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A server and the pid of its host."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SHARED, HOST, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    host = int(await owner.stdout.readline())
    try:
        yield owner, host
    finally:
        for pid in (owner.pid, host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await owner.wait()


async def test_a_host_ends_with_its_server(tmp_path: Path) -> None:
    async with app(tmp_path / "hosts") as (owner, host):
        owner.kill()
        async with asyncio.timeout(30):
            while is_alive(host):
                await asyncio.sleep(0.02)


ENDS_WITH = """
import sys, time
from moothall.workers.owner import end_with, process_of

end_with(process_of(int(sys.argv[1])))
print("watching", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["before", "while"])
async def test_a_process_ends_with_another_that_is_not_reaped(when: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if when == "before":
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        assert not process_of(owner.pid).is_alive()
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDS_WITH, str(owner.pid), stdout=asyncio.subprocess.PIPE
    )
    try:
        if when == "while":
            assert host.stdout is not None
            assert await host.stdout.readline() == b"watching\n"
            assert process_of(owner.pid).is_alive()
            owner.kill()
        async with asyncio.timeout(30):
            assert await host.wait() == -signal.SIGKILL
        assert not process_of(owner.pid).is_alive()
    finally:
        owner.kill()
        owner.wait()
        if host.returncode is None:
            host.kill()
            await host.wait()


async def test_a_host_ends_with_its_server_even_without_pidfds(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)"
    )
    me = this_process()
    started = int(
        Path(f"/proc/{owner.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    )
    arguments = (str(owner.pid), str(started), me.place, str(tmp_path), "without pidfds")
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert host.stdout is not None
    assert await host.stdout.readline() == b"registered\n"
    assert is_alive(host.pid)
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(30):
        assert await host.wait() == -signal.SIGKILL


async def test_a_stopped_host_is_ended_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "hosts"
    async with app(folder) as (owner, host):
        os.kill(host, signal.SIGSTOP)
        owner.kill()
        await owner.wait()
        assert is_alive(host)
        assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())] == [
            0o700,
            0o600,
        ]
        assert await asyncio.to_thread(kill_leftover_hosts, folder) == 1
        assert not is_alive(host)
        assert list(folder.iterdir()) == []


def test_processes_with_a_reused_pid_or_on_another_machine_are_left_alone(
    tmp_path: Path,
) -> None:
    me = this_process()
    records = {
        "later": replace(me, started=me.started - 1),
        "elsewhere": replace(me, place="another boot pid:[1]"),
    }
    for name, process in records.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(process)))
    (tmp_path / "torn.json").write_text('{"pid": 1')
    assert kill_leftover_hosts(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.json"]


async def test_a_host_that_starts_after_its_servers_end_ends_too(tmp_path: Path) -> None:
    me = this_process()
    arguments = (str(me.pid), str(me.started - 1), me.place, str(tmp_path))
    late = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, *arguments)
    async with asyncio.timeout(30):
        assert await late.wait() == -signal.SIGKILL


def test_an_orderly_end_leaves_no_record(tmp_path: Path) -> None:
    with registered(tmp_path, Process(1, 1, "another machine")):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


RAYLET = """
import subprocess, sys, time
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)
print(agent.pid, flush=True)
time.sleep(600)
"""  # noqa: E501 - a line of embedded text


@pytest.mark.parametrize("named", ["argument", "environment"])
async def test_a_ray_process_without_its_owner_ends_with_its_folder(
    tmp_path: Path, named: str
) -> None:
    dead_owner = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await dead_owner.wait()
    folder = tmp_path / f"mh-{dead_owner.pid}-abc"
    folder.mkdir()
    arguments = [str(folder / "r")] if named == "argument" else []
    env = {"RAY": str(folder)} if named == "environment" else {}
    raylet = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RAYLET, *arguments, env=env, stdout=asyncio.subprocess.PIPE
    )
    assert raylet.stdout is not None
    agent = int(await raylet.stdout.readline())
    assert await asyncio.to_thread(sweep, tmp_path) == 1
    async with asyncio.timeout(30):
        assert await raylet.wait() == -signal.SIGKILL
        while is_alive(agent):
            await asyncio.sleep(0.02)
