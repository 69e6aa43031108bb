from __future__ import annotations

import json
import os
import time
from pathlib import Path

from moothall.domain import codec
from moothall.domain.repository import Base, Prepared, Profile
from moothall.workspace.layout import (
    Layout,
    StoredItem,
    choose_removable,
    clean,
    disk_size,
    environment_key,
    has_open_workspaces,
    list_stored,
)

LONG_AGO = time.time() - 30 * 86_400
BASE = Base(
    "sample", "a" * 40, Profile(checks={"tests": ("python", "-m", "pytest")}, lock_digest="one")
)


def create_stored_items(data_dir: Path) -> Layout:
    """Create an old checkout that was used just now, its old environment, and an old starter and
    clone.
    """
    layout = Layout(data_dir)
    folders = [
        layout.tree("k"),
        layout.history("k"),
        layout.environment(environment_key(BASE)),
        layout.environment("starter-x"),
        data_dir / "repos/a.git",
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 10_000)
        os.utime(folder, (LONG_AGO, LONG_AGO))
    layout.prepared_file("k").parent.mkdir()
    layout.prepared_file("k").write_text(
        json.dumps(codec.dump(Prepared(BASE, "k", ()))), encoding="utf-8"
    )
    return layout


def kinds(items: tuple[StoredItem, ...]) -> list[str]:
    return sorted(item.kind for item in items)


def test_stored_items_used_by_a_recent_checkout_are_recent(tmp_path: Path) -> None:
    create_stored_items(tmp_path)
    items = list_stored(tmp_path)
    assert kinds(items) == ["checkout", "clone", "environment", "history", "starter"]
    assert all(item.size >= 10_000 for item in items)
    assert kinds(choose_removable(items, older_than=14, everything=False, registered=["a"])) == [
        "starter"
    ]
    assert kinds(choose_removable(items, older_than=14, everything=False, registered=[])) == [
        "clone",
        "starter",
    ]
    assert choose_removable(items, older_than=0, everything=True, registered=["a"]) == items


async def test_items_in_use_stay_and_the_rest_is_deleted(tmp_path: Path) -> None:
    layout = create_stored_items(tmp_path)
    deleted: list[StoredItem] = []
    async with layout.lock("k"):
        busy = await clean(tmp_path, list_stored(tmp_path), deleted.append)
    assert kinds(busy) == ["checkout", "history"]
    assert kinds(tuple(deleted)) == ["clone", "environment", "starter"]
    assert layout.tree("k").exists()
    assert await clean(tmp_path, list_stored(tmp_path), deleted.append) == ()
    assert not layout.tree("k").exists()
    assert not layout.history("k").exists()
    assert not layout.prepared_file("k").exists()
    assert list_stored(tmp_path) == ()


async def test_an_open_workspace_is_detected_by_its_lock(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert not has_open_workspaces(tmp_path)
    (layout.run / "1-a").mkdir(parents=True)
    (layout.run / "1-a/lock").touch()
    assert not has_open_workspaces(tmp_path), "unlocked: its process was killed"
    (tmp_path / "locks").symlink_to(layout.run / "1-a")
    async with layout.lock("lock"):
        assert has_open_workspaces(tmp_path)


def test_a_hard_linked_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    size_before = disk_size(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert disk_size(tmp_path) == size_before
