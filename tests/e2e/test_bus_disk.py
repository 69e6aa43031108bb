"""The bus and its disk: a full disk, and data that a killed server left half written."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from moothall.config import BusSettings
from moothall.domain.event import Channel, Event, EventType, Recorded, new_event
from moothall.errors import BusUnavailable
from moothall.events.delivery import BusLimits
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from moothall.events.registry import WORK

pytestmark = pytest.mark.e2e

SETTINGS, LIMITS = BusSettings(ack_wait_seconds=2.0), BusLimits(publish_seconds=2.0)


def event(number: int) -> Event:
    data = {"task_id": "task-1", "turn": number, "thought": "word " * 600}
    return new_event(EventType.SEAT_TURN, "task-1", data, ordinal=number)


def work(number: int) -> Event:
    return new_event(
        EventType.DELIBERATION_REQUESTED, f"task-{number}", {"task_id": f"task-{number}"}
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    completed = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if completed.returncode:
        pytest.skip(
            "a disk that can be filled needs the right to mount a tmpfs; run as root: "
            f"{completed.stderr.decode().strip()}"
        )
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk up to a few kilobytes with a file, and return the file."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - 60_000))
    return ballast


async def publish_for_ever(bus: JetStreamBus, acked: list[int]) -> None:
    while True:
        await bus.publish(event(len(acked)))
        acked.append(len(acked))


async def turns(bus: JetStreamBus) -> list[int]:
    async with aclosing(bus.replay([Channel.RESULTS.of("task-1")])) as events:
        return [int(recorded.event.data["turn"]) async for recorded in events]


async def test_a_full_disk_is_reported_and_loses_nothing_and_ends_when_there_is_space(
    small_disk: Path,
) -> None:
    async with (
        embedded_server(SETTINGS, small_disk / "bus") as url,
        open_bus(SETTINGS, url, limits=LIMITS) as bus,
    ):
        acked = [number for number in range(5) if await bus.publish(event(number))]
        ballast = fill(small_disk)
        with pytest.raises(BusUnavailable, match="is there space on its disk"):
            await publish_for_ever(bus, acked)
        assert await turns(bus) == acked, (
            "acknowledged messages are readable while the disk is full"
        )
        ballast.unlink()
        async with asyncio.timeout(60):
            while True:
                try:
                    await bus.publish(event(len(acked)))
                except BusUnavailable:
                    continue
                break
        assert await turns(bus) == [*acked, len(acked)]


async def test_acked_work_is_not_redelivered_after_a_kill_between_ack_and_removal(
    tmp_path: Path,
) -> None:
    directory, copied = tmp_path / "bus", tmp_path / "kept"
    [messages] = [directory / "store" / "jetstream" / "$G" / "streams" / WORK.name / "msgs"]
    async with (
        embedded_server(SETTINGS, directory) as url,
        open_bus(SETTINGS, url, limits=LIMITS) as bus,
    ):
        await bus.enqueue(Channel.WORK.of("dev"), work(1))
    shutil.copytree(messages, copied)
    async with (
        embedded_server(SETTINGS, directory) as url,
        open_bus(SETTINGS, url, limits=LIMITS) as bus,
    ):
        assert await take_work(bus, until=1) == ["task-1"]
    shutil.rmtree(messages)
    shutil.move(copied, messages)
    async with (
        embedded_server(SETTINGS, directory) as url,
        open_bus(SETTINGS, url, limits=LIMITS) as bus,
    ):
        assert (await bus.state(WORK.name)).messages == 1, "the state that a kill may leave"
        await bus.enqueue(Channel.WORK.of("dev"), work(2))
        assert await take_work(bus, until=1) == ["task-2"]
        assert (await bus.state(WORK.name)).messages == 0


async def take_work(bus: JetStreamBus, until: int) -> list[str]:
    """Take work until this many items were taken and none is left; return their task ids."""
    task_ids: list[str] = []

    async def handle(recorded: Recorded) -> None:
        task_ids.append(str(recorded.event.data["task_id"]))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        taking = group.create_task(bus.consume("host-dev", handle))
        while len(task_ids) < until or (await bus.state(WORK.name)).messages:
            await asyncio.sleep(0.05)
        taking.cancel()
    return task_ids
