from __future__ import annotations

import json
import os
import time
from pathlib import Path

from moothall.config import WorkspaceSettings
from moothall.domain import codec
from moothall.domain.repository import Base, Prepared, Profile
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change
from moothall.workspace.layout import Layout, environment_key, prune_preparations
from support.repos import make_sample

LONG_AGO = time.time() - 30 * 86_400


def create_prepared(layout: Layout, key: str, base: Base, *, used: float) -> None:
    """Create a prepared checkout that was last used at this time."""
    record, tree, environment = (
        layout.prepared_file(key),
        layout.tree(key),
        layout.environment(environment_key(base)),
    )
    history = layout.history(key)
    for folder in (record.parent, tree, history, environment, layout.data_dir / "locks"):
        folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(codec.dump(Prepared(base, key, ("a.txt",)))), encoding="utf-8")
    (layout.data_dir / "locks" / key).touch()
    for path, time_of_use in (
        (record, used),
        (tree, LONG_AGO),
        (history, LONG_AGO),
        (environment, LONG_AGO),
    ):
        os.utime(path, (time_of_use, time_of_use))


def base(sha: str, lock: str) -> Base:
    return Base(
        "sample", sha * 40, Profile(checks={"tests": ("python", "-m", "pytest")}, lock_digest=lock)
    )


async def test_preparations_unused_for_long_are_pruned(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    create_prepared(layout, "recent", base("a", "one"), used=time.time())
    create_prepared(layout, "old", base("b", "two"), used=LONG_AGO)
    create_prepared(layout, "shares", base("c", "one"), used=LONG_AGO)
    (layout.tree("half-made")).mkdir()
    assert await prune_preparations(tmp_path, 14) == 5, (
        "two checkouts with their histories and an environment"
    )
    assert sorted(path.name for path in (tmp_path / "checkouts").iterdir()) == [
        "half-made",
        "recent",
    ], "fresh ones stay"
    assert [path.name for path in (tmp_path / "histories").iterdir()] == ["recent"]
    assert [path.name for path in (tmp_path / "environments").iterdir()] == [
        environment_key(base("a", "one"))
    ]
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == ["recent.json"]
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["recent"]
    assert await prune_preparations(tmp_path, 14) == 0


async def test_pruning_nothing_is_not_an_error(tmp_path: Path) -> None:
    assert await prune_preparations(tmp_path, 14) == 0


async def test_unreferenced_patches_are_pruned(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "sample")
    clone = TrustedClone(tmp_path / "repos" / "sample.git", WorkspaceSettings())
    sha = await clone.fetch(str(repo.path), "HEAD")
    referenced, unreferenced = [
        (await clone.commit_changes(sha, [Change("NOTES.md", "100644", text)], "notes")).commit_sha
        for text in (b"kept\n", b"gone\n")
    ]
    assert await clone.prune({referenced}) == 1
    assert await clone.has(referenced)
    assert await clone.has(sha), "the base is not a patch"
    assert not await clone.has(unreferenced)
    assert await clone.prune({referenced}) == 0
    recreated = await clone.commit_changes(sha, [Change("NOTES.md", "100644", b"gone\n")], "notes")
    assert recreated.commit_sha == unreferenced
    assert await clone.has(unreferenced)
