"""Environments that hosts on different disks share with each other, and their limits."""

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
    tmp_path: Path, image: str = "one", max_bytes: int = 50_000_000_000, **options: Any
) -> Archives:
    workspace = WorkspaceSettings(environments=tmp_path / "shared", **options)
    return Archives(
        AllSettings(data_dir=tmp_path / "data", workspace=workspace, jobs=JobSettings(image=image)),
        max_bytes,
    )


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The folder of a finished set-up, with the files that were mounted beside it."""
    folder = tmp_path / "made"
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "env" / "bin" / "tool").chmod(0o755)
    (folder / "env" / "python").symlink_to("/usr/bin/python3")
    (folder / "layer").mkdir()
    (folder / "layer" / "built").write_text("built")
    (folder / "0.conf").write_text("index-url = https://operator.example")
    return folder


def stored_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "shared").glob("*/*") if path.is_file()]


def empty(tmp_path: Path, name: str = "taken") -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


async def test_an_environment_stored_by_one_host_is_restored_on_another(
    tmp_path: Path, environment: Path
) -> None:
    await archives(tmp_path).store("key", environment)
    restored, messages = empty(tmp_path), list[str]()
    assert await archives(tmp_path).restore("key", restored, messages.append)
    assert messages == ["using the environment of another host"]
    assert sorted(path.name for path in restored.iterdir()) == ["env", "layer"]
    assert os.access(restored / "env/bin/tool", os.X_OK)
    assert (restored / "env/python").readlink() == Path("/usr/bin/python3")
    assert (restored / "layer/built").read_text() == "built"


async def test_another_key_or_image_restores_nothing(tmp_path: Path, environment: Path) -> None:
    await archives(tmp_path).store("key", environment)
    assert not await archives(tmp_path).restore("other", empty(tmp_path), print)
    assert not await archives(tmp_path, image="two").restore("key", tmp_path / "taken", print)
    assert list((tmp_path / "taken").iterdir()) == []


async def test_a_damaged_archive_is_reported_and_removed(tmp_path: Path, environment: Path) -> None:
    await archives(tmp_path).store("key", environment)
    (path,) = stored_files(tmp_path)
    path.write_bytes(path.read_bytes()[:700])
    messages: list[str] = []
    assert not await archives(tmp_path).restore("key", empty(tmp_path), messages.append)
    assert "setting it up again" in messages[0]
    assert stored_files(tmp_path) == []


async def test_the_least_recently_used_environment_is_deleted_if_space_is_short(
    tmp_path: Path, environment: Path
) -> None:
    (environment / "layer" / "large").write_bytes(b"x" * 400_000)
    for number in range(3):
        await archives(tmp_path, max_bytes=1_000_000).store(f"key-{number}", environment)
        for path in stored_files(tmp_path):
            os.utime(path, (time.time() - 60, time.time() - 60 + int(path.name[-1])))
    assert sorted(path.name for path in stored_files(tmp_path)) == ["key-1", "key-2"]
    (environment / "layer" / "large").write_bytes(b"x" * 1_400_000)
    await archives(tmp_path, max_bytes=1_000_000).store("too-large", environment)
    assert sorted(path.name for path in stored_files(tmp_path)) == ["key-1", "key-2"]


async def test_environments_unused_for_long_are_deleted_and_used_ones_stay(
    tmp_path: Path, environment: Path
) -> None:
    for name in ("used", "unused"):
        await archives(tmp_path, keep_days=2).store(name, environment)
    for path in stored_files(tmp_path):
        os.utime(path, (time.time() - 3 * DAY,) * 2)
    assert await archives(tmp_path, keep_days=2).restore("used", empty(tmp_path), print)
    await archives(tmp_path, keep_days=2).store("new", environment)
    assert sorted(path.name for path in stored_files(tmp_path)) == ["new", "used"]


async def test_an_unwritable_folder_stops_nothing(tmp_path: Path, environment: Path) -> None:
    (tmp_path / "shared").write_text("no folder")
    async with archives(tmp_path).lock("key"):
        pass
    await archives(tmp_path).store("key", environment)
    assert not await archives(tmp_path).restore("key", empty(tmp_path), print)
