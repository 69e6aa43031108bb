"""What hosts on different disks take from each other's set-ups, and what they do not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from moothall.config import JobSettings, WorkspaceSettings
from moothall.settings import AllSettings
from moothall.workspace.environment_cache import Archives

DAY = 86_400.0


def archives(
    tmp_path: Path, image: str = "one", max_bytes: int = 50_000_000_000, **more: Any
) -> Archives:
    workspace = WorkspaceSettings(environments=tmp_path / "shared", **more)
    return Archives(
        AllSettings(data_dir=tmp_path / "data", workspace=workspace, jobs=JobSettings(image=image)),
        max_bytes,
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """What a set-up made, with what it was shown beside it."""
    folder = tmp_path / "made"
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "env" / "bin" / "tool").chmod(0o755)
    (folder / "env" / "python").symlink_to("/usr/bin/python3")
    (folder / "layer").mkdir()
    (folder / "layer" / "built").write_text("built")
    (folder / "0.conf").write_text("index-url = https://operator.example")
    return folder


def stored(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "shared").glob("*/*") if path.is_file()]


def empty(tmp_path: Path, name: str = "taken") -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


async def test_an_environment_stored_by_one_host_is_restored_on_another(
    tmp_path: Path, made: Path
) -> None:
    await archives(tmp_path).store("key", made)
    taken, output_text = empty(tmp_path), list[str]()
    assert await archives(tmp_path).restore("key", taken, output_text.append)
    assert output_text == ["using the environment of another host"]
    assert sorted(path.name for path in taken.iterdir()) == ["env", "layer"]
    assert os.access(taken / "env/bin/tool", os.X_OK)
    assert (taken / "env/python").readlink() == Path("/usr/bin/python3")
    assert (taken / "layer/built").read_text() == "built"


async def test_another_key_or_image_restores_nothing(tmp_path: Path, made: Path) -> None:
    await archives(tmp_path).store("key", made)
    assert not await archives(tmp_path).restore("other", empty(tmp_path), print)
    assert not await archives(tmp_path, image="two").restore("key", tmp_path / "taken", print)
    assert list((tmp_path / "taken").iterdir()) == []


async def test_a_damaged_archive_is_reported_and_removed(tmp_path: Path, made: Path) -> None:
    await archives(tmp_path).store("key", made)
    (path,) = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:700])
    output_text: list[str] = []
    assert not await archives(tmp_path).restore("key", empty(tmp_path), output_text.append)
    assert "setting up anew" in output_text[0]
    assert stored(tmp_path) == []


async def test_the_least_recently_used_environment_is_deleted_if_space_is_short(
    tmp_path: Path, made: Path
) -> None:
    (made / "layer" / "large").write_bytes(b"x" * 400_000)
    for number in range(3):
        await archives(tmp_path, max_bytes=1_000_000).store(f"key-{number}", made)
        for path in stored(tmp_path):
            os.utime(path, (time.time() - 60, time.time() - 60 + int(path.name[-1])))
    assert sorted(path.name for path in stored(tmp_path)) == ["key-1", "key-2"]
    (made / "layer" / "large").write_bytes(b"x" * 1_400_000)
    await archives(tmp_path, max_bytes=1_000_000).store("too-large", made)
    assert sorted(path.name for path in stored(tmp_path)) == ["key-1", "key-2"]


async def test_environments_unused_for_long_are_deleted_and_used_ones_stay(
    tmp_path: Path, made: Path
) -> None:
    for name in ("used", "unused"):
        await archives(tmp_path, keep_days=2).store(name, made)
    for path in stored(tmp_path):
        os.utime(path, (time.time() - 3 * DAY,) * 2)
    assert await archives(tmp_path, keep_days=2).restore("used", empty(tmp_path), print)
    await archives(tmp_path, keep_days=2).store("new", made)
    assert sorted(path.name for path in stored(tmp_path)) == ["new", "used"]


async def test_an_unwritable_folder_stops_nothing(tmp_path: Path, made: Path) -> None:
    (tmp_path / "shared").write_text("no folder")
    async with archives(tmp_path).lock("key"):
        pass
    await archives(tmp_path).store("key", made)
    assert not await archives(tmp_path).restore("key", empty(tmp_path), print)
