"""Removing what preparation left and nobody has used for long. Only where no process has workspaces open on it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from moothall.domain import codec
from moothall.domain.repository import Prepared
from moothall.errors import InvalidRequest
from moothall.workspace.box import remove_tree
from moothall.workspace.layout import Layout, environment_key

_DAY = 86_400.0


async def prune_preparations(data_dir: Path, keep_days: float) -> int:
    """Remove checkouts, with what is known of them, and environments that were not used for `keep_days`; return how many.

    The caller holds the data directory: a workspace kept warm shows a checkout for as long as its process lives.
    """
    layout = Layout(data_dir)
    before = time.time() - keep_days * _DAY
    kept, old = await asyncio.to_thread(_sort, layout, before)
    for key in old:
        layout.prepared(key).unlink()
        (data_dir / "locks" / key).unlink(missing_ok=True)
    known = {path.stem for path in kept}
    trees = await asyncio.to_thread(_folders, layout.tree("-").parent, before)
    gone = [tree for tree in trees if tree.name not in known]
    used = {name for path in kept if (name := await asyncio.to_thread(environment_of, path))}
    environments = await asyncio.to_thread(_folders, layout.environment("-").parent, before)
    gone += [folder for folder in environments if folder.name not in used]
    for folder in gone:
        await remove_tree(folder)
    return len(gone)


def _sort(layout: Layout, before: float) -> tuple[list[Path], list[str]]:
    """Return the records that stay and the keys of those that go."""
    records = list(layout.prepared("-").parent.glob("*.json"))
    old = [path.stem for path in records if path.stat().st_mtime < before]
    return [path for path in records if path.stem not in old], old


def _folders(parent: Path, before: float) -> list[Path]:
    return [path for path in parent.glob("*") if path.is_dir() and path.stat().st_mtime < before]


def environment_of(path: Path) -> str:
    """Return the environment that a prepared base uses."""
    try:
        return environment_key(codec.load(Prepared, json.loads(path.read_text(encoding="utf-8"))).base)
    except (ValueError, InvalidRequest):
        return ""  # half written: it is prepared again
