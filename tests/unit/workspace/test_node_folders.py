from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from moothall.errors import WorkspaceFailed
from moothall.workspace import archive
from moothall.workspace.node_sandboxes import FolderCache


@pytest.fixture
def parts(tmp_path: Path) -> list[bytes]:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "file").write_text("content", encoding="utf-8")
    target = io.BytesIO()
    archive.pack(source, target)
    data = target.getvalue()
    return [data[:700], data[700:]]


class Parts:
    """A fetcher that counts its calls."""

    def __init__(self) -> None:
        self.fetched = 0

    async def __call__(self, part: Any) -> bytes:
        self.fetched += 1
        await asyncio.sleep(0)
        return bytes(part)


async def test_a_folder_is_unpacked_once_for_concurrent_callers(
    tmp_path: Path, parts: list[bytes]
) -> None:
    fetch = Parts()
    cache = FolderCache(tmp_path / "cache", fetch)
    places = await asyncio.gather(*(cache.hold("checkouts/a", parts) for _ in range(3)))
    assert {(place / "inner" / "file").read_text(encoding="utf-8") for place in places} == {
        "content"
    }
    assert fetch.fetched == len(parts)
    assert cache.names == {"checkouts/a"}
    assert cache.missing(["checkouts/a", "b"]) == {"b"}


async def test_unused_folders_beyond_the_limit_are_deleted_and_used_ones_stay(
    tmp_path: Path, parts: list[bytes]
) -> None:
    cache = FolderCache(tmp_path / "cache", Parts(), max_unused=1)
    for name in ("used", "old", "new"):
        await cache.hold(name, parts)
    await cache.release(["old"])
    await cache.release(["new"])
    assert cache.names == {"used", "new"}
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["new", "used"]
    with pytest.raises(WorkspaceFailed, match="no longer has old"):
        await cache.hold("old", [])


async def test_a_truncated_archive_leaves_nothing(tmp_path: Path, parts: list[bytes]) -> None:
    cache = FolderCache(tmp_path / "cache", Parts())
    with pytest.raises(WorkspaceFailed):
        await cache.hold("a", [parts[0][:300]])
    with pytest.raises(WorkspaceFailed, match="leads out of the folder"):
        await cache.hold("../a", parts)
    assert cache.names == set()
    assert list((tmp_path / "cache").iterdir()) == []
