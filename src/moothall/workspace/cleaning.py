"""What preparation keeps on disk, with sizes, and removing it. All of it is made again when it is
needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moothall.domain import codec
from moothall.domain.repository import Prepared
from moothall.errors import InvalidRequest
from moothall.file_locks import lock_file, try_lock
from moothall.workspace.executor_client import remove_tree
from moothall.workspace.layout import Layout, environment_key

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One thing: a checkout, history, environment, starter or clone, its size in bytes and when it
    was last used (seconds since 1970).

    `lock` is what whoever works on it holds.
    """

    kind: str
    path: Path
    size: int
    used: float
    lock: str = ""


def list_kept(data_dir: Path) -> tuple[StoredItem, ...]:
    """Return all that is there, the largest first. Blocks: reads every folder."""
    layout = Layout(data_dir)
    found: list[StoredItem] = []
    records = list(layout.prepared_file("-").parent.glob("[!.]*.json"))
    users: dict[str, float] = {}
    for record in records:
        name = environment_of(record)
        users[name] = max(users.get(name, 0.0), _last_used(record))
    for path in _folders(layout.tree("-").parent):
        record = layout.prepared_file(path.name)
        found.append(
            StoredItem(
                "checkout",
                path,
                size_of(path),
                _last_used(record if record.exists() else path),
                path.name,
            )
        )
    for path in _folders(layout.history("-").parent):
        record = layout.prepared_file(path.name)
        found.append(
            StoredItem(
                "history",
                path,
                size_of(path),
                _last_used(record if record.exists() else path),
                path.name,
            )
        )
    for path in _folders(layout.environment("-").parent):
        kind = "starter" if path.name.startswith("starter-") else "environment"
        found.append(
            StoredItem(
                kind,
                path,
                size_of(path),
                max(_last_used(path), users.get(path.name, 0.0)),
                f"env-{path.name}",
            )
        )
    clones = (path for path in _folders(data_dir / "repos") if path.suffix == ".git")
    found += [
        StoredItem("clone", path, size_of(path), max(map(_last_used, (path, *_parts(path)))))
        for path in clones
    ]
    return tuple(sorted(found, key=lambda item: item.size, reverse=True))


def choose(
    items: Sequence[StoredItem], *, older_than: float, everything: bool, registered: Sequence[str]
) -> tuple[StoredItem, ...]:
    """Return what goes: what was not used for `older_than` days, or `everything`. Of clones, which
    also hold what councils proposed, only those of no registered repository, unless it is
    everything.
    """
    before = time.time() - older_than * DAY
    return tuple(
        item
        for item in items
        if everything
        or (item.path.stem not in registered if item.kind == "clone" else item.used < before)
    )


async def clean(
    data_dir: Path, items: Sequence[StoredItem], removed: Callable[[StoredItem], None]
) -> tuple[StoredItem, ...]:
    """Remove these and return those that are in use and stay. The caller holds the data
    directory.
    """
    layout, busy = Layout(data_dir), []
    for item in items:
        with _hold(data_dir / "locks", item.lock) as free:
            if not free:
                busy.append(item)
                continue
            if item.kind == "checkout":
                layout.prepared_file(item.path.name).unlink(missing_ok=True)
            await remove_tree(item.path)
        removed(item)
    return tuple(busy)


def at_work(data_dir: Path) -> bool:
    """Whether a process has workspaces open here."""
    for folder in _folders(Layout(data_dir).run):
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or just gone
        try:
            if not try_lock(descriptor):
                return True
        finally:
            os.close(descriptor)
    return False


def size_of(folder: Path) -> int:
    """Return the bytes on disk below a folder; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            try:
                found = os.lstat(os.path.join(at, name))  # noqa: PTH118 - a Path for each of a million files costs seconds
            except OSError:
                continue
            if found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * 512
    return total


@contextmanager
def _hold(folder: Path, name: str) -> Iterator[bool]:
    """Hold a lock of the layout's, unless somebody else does."""
    if not name:
        yield True
        return
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / name) as free:
        yield free


def _folders(parent: Path) -> list[Path]:
    """The folders there, but those that are just being made."""
    return [
        path for path in sorted(parent.glob("*")) if path.is_dir() and not path.name.startswith(".")
    ]


def _parts(clone: Path) -> list[Path]:
    return [
        path
        for path in (clone / "objects", clone / "objects" / "pack", clone / "refs")
        if path.exists()
    ]


def _last_used(path: Path) -> float:
    return path.stat().st_mtime


async def prune_preparations(data_dir: Path, keep_days: float) -> int:
    """Remove checkouts and histories, with what is known of them, and environments that were not
    used for `keep_days`; return how many.

    The caller holds the data directory: a workspace kept warm shows a checkout for as long as its
    process lives.
    """
    layout = Layout(data_dir)
    before = time.time() - keep_days * DAY
    kept, old = await asyncio.to_thread(_sort, layout, before)
    for key in old:
        layout.prepared_file(key).unlink()
        (data_dir / "locks" / key).unlink(missing_ok=True)
    known = {path.stem for path in kept}
    parents = (layout.tree("-").parent, layout.history("-").parent)
    of_bases = [
        folder
        for parent in parents
        for folder in await asyncio.to_thread(_unused_folders, parent, before)
    ]
    gone = [folder for folder in of_bases if folder.name not in known]
    used = {name for path in kept if (name := await asyncio.to_thread(environment_of, path))}
    environments = await asyncio.to_thread(_unused_folders, layout.environment("-").parent, before)
    gone += [folder for folder in environments if folder.name not in used]
    for folder in gone:
        await remove_tree(folder)
    return len(gone)


def _sort(layout: Layout, before: float) -> tuple[list[Path], list[str]]:
    """Return the records that stay and the keys of those that go."""
    records = list(layout.prepared_file("-").parent.glob("*.json"))
    old = [path.stem for path in records if path.stat().st_mtime < before]
    return [path for path in records if path.stem not in old], old


def _unused_folders(parent: Path, before: float) -> list[Path]:
    return [path for path in parent.glob("*") if path.is_dir() and path.stat().st_mtime < before]


def environment_of(path: Path) -> str:
    """Return the environment that a prepared base uses."""
    try:
        return environment_key(
            codec.load(Prepared, json.loads(path.read_text(encoding="utf-8"))).base
        )
    except (ValueError, InvalidRequest):
        return ""  # half written: it is prepared again
