"""The disk of bus, hosts, clones and logs is full for a while."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.recovery.lane import Lane, Plan, RunResult, lane

pytestmark = pytest.mark.e2e

FULL_SECONDS = 8.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 MB."""
    place, image = tmp_path / "disk", tmp_path / "image"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(300_000_000)
    commands = (
        ["mkfs.ext4", "-q", "-m", "0", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    )
    for command in commands:
        completed = subprocess.run(command, capture_output=True, check=False)
        if completed.returncode:
            pytest.skip(
                "a disk that can be filled needs the right to mount one; run as root: "
                f"{completed.stderr.decode().strip()}"
            )
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fill every block with a file, and return the file."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1_000_000, 1024):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast


async def deliberate_on_full_disk(test_lane: Lane, disk: Path) -> RunResult:
    """Deliberate with a disk that is full at the start and has space again after a while."""
    ballast = fill(disk)
    running = asyncio.ensure_future(test_lane.run(Plan()))
    await asyncio.sleep(FULL_SECONDS)
    ballast.unlink()
    return await running


async def test_a_deliberation_submitted_on_a_full_disk_ends_normally_once_there_is_space(
    small_disk: Path,
) -> None:
    async with lane(small_disk / "lane") as test_lane:
        reference = await test_lane.run(Plan())
        late = await deliberate_on_full_disk(test_lane, small_disk)
        later_result = await test_lane.run(Plan())
    assert reference.end is not None
    assert reference.trouble == []
    for result in (late, later_result):
        assert (result.end, result.trouble, result.repeated) == (reference.end, [], [])
