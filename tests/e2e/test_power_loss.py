"""The machine loses power: the file system of the data directory stops at once, and what no program
synced is gone. Then it is mounted again, and the server starts on what is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from served import Served, make_command, run_server

from command import Command, answer_turns_with, by_task
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import ScriptedModel, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

EXT4_IOC_SHUTDOWN = 0x8004587D
GOING_FLAGS_NOLOGFLUSH = 2
"""Stop the file system at once, without writing its journal or anything else."""
ANSWERED = [f"answered-{number}" for number in range(4)]


class Disk:
    """An ext4 file system that can lose power."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self._image = folder / "image"

    def create(self) -> None:
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(300_000_000)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)

    async def unmount(self) -> None:
        """Unmount once the last process that uses it, in any mount namespace, has ended."""
        async with asyncio.timeout(60):
            while subprocess.run(["umount", str(self.path)], check=False).returncode:
                await asyncio.sleep(0.2)
            while subprocess.check_output(["losetup", "-j", str(self._image)]):
                await asyncio.sleep(0.2)

    def lose_power(self) -> None:
        """Drop everything that is not on the disk. Later reads and writes fail."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", GOING_FLAGS_NOLOGFLUSH))
        finally:
            os.close(descriptor)


@pytest_asyncio.fixture(loop_scope="session")
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not Path("/dev/loop0").exists():
        pytest.skip("a disk that can lose power needs root, mkfs.ext4 and a loop device")
    disk = Disk(tmp_path)
    disk.create()
    yield disk
    await disk.unmount()


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[ScriptedModel]:
    async with scripted_model(answer_turns_with(by_task)) as server:
        yield server


def command_on(disk: Disk, model: ScriptedModel, sync_interval: str) -> Command:
    command = make_command(disk.path, model.base_url)
    command.extra |= {"MOOTHALL_WEB__PORT": "0", "MOOTHALL_BUS__SYNC_INTERVAL": sync_interval}
    return command


async def deliberate(app: Served, task_id: str) -> str:
    response = await app.stub().Deliberate(
        pb.DeliberateRequest(
            task_description="Write a HAIKU", role="DEV", num_agents=1, task_id=task_id
        )
    )
    return str(response.winner_id)


async def is_known(app: Served, task_id: str) -> bool:
    """Return whether the server has the winner of a task."""
    request = pb.GetDeliberationResultRequest(task_id=task_id)
    try:
        response = await app.stub().GetDeliberationResult(request)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return False
        raise
    assert response.status == pb.DELIBERATION_STATUS_COMPLETED
    return bool(response.winner_id)


@asynccontextmanager
async def powerless(command: Command, disk: Disk) -> AsyncIterator[Served]:
    """Serve until the context ends, then lose power, which ends every process."""
    async with run_server(command, signal.SIGKILL) as app:
        yield app
        disk.lose_power()
    await disk.unmount()
    disk.mount()


async def test_with_sync_always_no_acked_answer_is_lost(
    disk: Disk, model: ScriptedModel, repo: Path
) -> None:
    command = command_on(disk, model, "always")
    command.extra["MOOTHALL_WORKSPACE__ALLOWED_ROOTS"] = json.dumps([str(repo)])
    async with powerless(command, disk) as app:
        code = await app.stub().Deliberate(
            pb.DeliberateRequest(
                task_description="Add hello_world() to src/utils.py",
                role="DEV",
                num_agents=1,
                repository=common_pb2.Repository(url=str(repo)),
            )
        )
        for task_id in ANSWERED:
            assert await deliberate(app, task_id) == "agent-dev-001"
    calls = len(model.requests)
    async with run_server(command) as app:
        assert [task_id for task_id in ANSWERED if not await is_known(app, task_id)] == []
        assert await deliberate(app, ANSWERED[-1]) == "agent-dev-001"  # from the log
        assert len(model.requests) == calls
        request = pb.GetDeliberationResultRequest(task_id=code.task_id)
        result = await app.stub().GetDeliberationResult(request)
        assert result.results[0].proposal.diff == code.results[0].proposal.diff
    checked = await command("log", "check")
    assert checked.code == 0, checked.err


async def test_by_default_a_power_loss_takes_unsynced_answers_and_nothing_else(
    disk: Disk, model: ScriptedModel
) -> None:
    command = command_on(disk, model, "2m")
    async with powerless(command, disk) as app:
        await deliberate(app, "synced")
        os.sync()
        for task_id in ANSWERED:
            await deliberate(app, task_id)
    async with run_server(command) as app:
        assert await is_known(app, "synced")
        # The test would prove nothing if the disk had everything.
        lost_ids = [task_id for task_id in ANSWERED if not await is_known(app, task_id)]
        assert lost_ids != []
        assert lost_ids == ANSWERED[-len(lost_ids) :]  # the last ones
        for task_id in lost_ids:
            assert await deliberate(app, task_id) == "agent-dev-001"  # it runs again
    checked = await command("log", "check")
    assert checked.code == 0, checked.err
