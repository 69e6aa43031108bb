"""Processes that outlive bubblewrap's outer process are found and ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from moothall.config import SandboxSettings
from moothall.processes import try_lock
from moothall.sandbox import orphans
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter_binds
from moothall.sandbox.spawn import run_sandbox, spawn
from moothall.workspace.layout import Layout
from moothall.workspace.pool import sweep

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

TIMES = range(
    0, 80, 8
)  # milliseconds from the start: launcher, bubblewrap's outer process, its inner one, the command


def spec(name: str) -> SandboxSpec:
    return SandboxSpec(
        name=name, argv=("/bin/sleep", "600"), limits=SandboxSettings(), ro=interpreter_binds()
    )


def sandboxes_titled(prefix: str) -> list[int]:
    """Return the living processes of sandboxes whose name begins so."""
    title = orphans.process_title(prefix)
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [""])[0].startswith(title)
    ]


@contextmanager
def orphan(name: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([orphans.process_title(name), "600"], executable="/bin/sleep") as process:
        try:
            yield process
        finally:
            process.kill()


async def until_named(name: str) -> None:
    async with asyncio.timeout(20):
        while len(sandboxes_titled(name)) < 2:
            await asyncio.sleep(0.01)


async def test_a_sandbox_is_found_and_ended_by_its_name() -> None:
    name, other_name = f"{os.getpid()}-named-1", f"{os.getpid()}-other-1"
    async with run_sandbox(spec(name)) as sandbox, run_sandbox(spec(other_name)) as stays:
        await until_named(name)
        await until_named(other_name)
        assert (
            orphans.kill_sandboxes(f"{os.getpid()}-named-") >= 1
        )  # the inner process may end with the outer one before it is inspected
        await asyncio.wait_for(sandbox.process.wait(), 20)
        assert stays.alive
    async with asyncio.timeout(20):  # the inner one ends with the outer one, a moment later
        while sandboxes_titled(f"{os.getpid()}-"):
            await asyncio.sleep(0.01)


async def test_closing_a_sandbox_during_its_start_leaves_nothing_behind() -> None:
    prefix = f"{os.getpid()}-early-"
    for delay_ms in TIMES:
        sandbox = await spawn(spec(f"{prefix}{delay_ms}"))
        await asyncio.sleep(delay_ms / 1000)
        await sandbox.close()
        if sandbox.cgroup:
            assert not sandbox.cgroup.memory.exists()
    orphans.kill_sandboxes(prefix)  # without cgroups, closing the pool ends it
    async with asyncio.timeout(20):
        while sandboxes_titled(prefix):
            await asyncio.sleep(0.01)


async def test_the_sweep_ends_sandboxes_of_a_killed_host_and_none_of_a_living_one(
    tmp_path: Path,
) -> None:
    layout, dead, live = Layout(tmp_path), f"{os.getpid()}-dead", f"{os.getpid()}-living"
    for instance in (dead, live):
        (layout.run / instance).mkdir(parents=True)
        (layout.run / instance / "lock").touch()
    with (
        (layout.run / live / "lock").open("r+") as lock_file,
        orphan(f"{dead}-1") as left,
        orphan(f"{live}-1") as works,
    ):
        assert try_lock(lock_file.fileno())
        await sweep(layout)
        assert not (layout.run / dead).exists(), (
            "one signal is enough, although a killed process needs a moment to end"
        )
        assert left.wait(20) == -9
        assert works.poll() is None
        assert (layout.run / live).exists()


HOST = """
import asyncio, sys
from pathlib import Path
from moothall.config import Settings
from moothall.workspace.pool import ExecutorPool

async def main():
    async with ExecutorPool(Settings(data_dir=Path(sys.argv[1]))):
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_half_started_sandboxes_of_a_killed_host_end_without_a_restart(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path)], stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        assert await asyncio.to_thread(host.stdout.readline) == b"ready\n"
        (instance,) = [folder.name for folder in Layout(tmp_path).run.iterdir()]
        with orphan(f"{instance}-1") as left, orphan(f"{os.getpid()}-other") as stays:
            children = psutil.Process(host.pid).children()
            host.kill()
            assert await asyncio.to_thread(left.wait, 20) == -9
            assert stays.poll() is None
    await asyncio.to_thread(psutil.wait_procs, children, 20)
    assert not [process for process in children if process.is_running()], (
        "processes that waited for it have ended too"
    )
    assert not (Layout(tmp_path).run / instance).exists()


WORKING = """
import asyncio, sys
from pathlib import Path
from moothall.config import SandboxSettings, Settings
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter_binds
from moothall.sandbox.spawn import run_sandbox
from moothall.workspace.pool import ExecutorPool

async def main():
    async with ExecutorPool(Settings(data_dir=Path(sys.argv[1]))) as pool:
        (folder,) = pool.layout.run.iterdir()
        upper = folder / f"{folder.name}-1" / "upper"
        upper.mkdir(parents=True)
        (upper / "closed").mkdir(mode=0)
        spec = SandboxSpec(
            name=f"{folder.name}-1", argv=("/bin/sleep", "600"), limits=SandboxSettings(), ro=interpreter_binds()
        )
        async with run_sandbox(spec) as inside:
            groups = {inside.cgroup.memory, inside.cgroup.pids} if inside.cgroup else ()
            print(*map(str, groups), flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""  # noqa: E501 - a line of embedded text


async def test_cgroups_and_folder_of_a_killed_host_are_removed_without_a_restart(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKING, str(tmp_path)], stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        groups = [
            Path(word) for word in (await asyncio.to_thread(host.stdout.readline)).decode().split()
        ]
        (folder,) = Layout(tmp_path).run.iterdir()
        assert all(group.exists() for group in groups)
        reapers = psutil.Process(host.pid).children()
        host.kill()
    await asyncio.to_thread(psutil.wait_procs, reapers, 30)
    assert not folder.exists()
    assert not [group for group in groups if group.exists()]
    assert sandboxes_titled(folder.name) == []


async def test_a_folder_being_swept_by_another_process_is_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    (folder / "lock").touch()
    with (folder / "lock").open("r+") as lock_file:
        assert try_lock(lock_file.fileno())
        orphans.remove_folder(folder)
        assert folder.exists()
    orphans.remove_folder(folder)
    assert not folder.exists()
