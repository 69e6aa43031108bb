"""`moothall clean` and `moothall repo remove`: what lies in the data directory, and nothing that is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.wiring import lock
from moothall.wiring.trusted import trusted_repositories
from moothall.workspace.box import remove_tree
from moothall.workspace.cleaning import Kept, at_work, choose, clean, list_kept


@dataclass(frozen=True, slots=True)
class Cleaned:
    """All that was there, what went (or would go), and why nothing could; `busy` was in use and stays."""

    there: Sequence[Kept]
    gone: Sequence[Kept]
    busy: Sequence[Kept] = ()
    why_not: str = ""


async def clean_up(
    settings: Settings, *, older_than: float | None, everything: bool, dry_run: bool, removed: Callable[[Kept], None]
) -> Cleaned:
    """Remove what was not used for `older_than` days (`workspace.keep_days` by default), or everything."""
    data_dir = settings.data_dir
    with _alone(data_dir) as why_not:
        there = await asyncio.to_thread(list_kept, data_dir)
        registered = [entry.clone for entry in trusted_repositories(settings).registry.all()]
        days = settings.workspace.keep_days if older_than is None else older_than
        going = choose(there, older_than=days, everything=everything, registered=registered)
        if dry_run or why_not:
            return Cleaned(there, going, (), why_not)
        busy = await clean(data_dir, going, removed)
        return Cleaned(there, tuple(item for item in going if item not in busy), busy)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Which repository went; `clone_left` says why its clone stays, '' where it went too."""

    id: str
    origin: str
    clone_left: str


async def unregister(settings: Settings, repository: str) -> Unregistered:
    """Remove a repository from the registry, and its clone where nobody may be at work on it. Raises `NotFound`."""
    registry = trusted_repositories(settings).registry
    entry = registry.get(repository, LOCAL.tenant)
    for one in (*(other for other in registry.all() if other.of == entry.id), entry):
        registry.remove(one.id)
    with _alone(settings.data_dir) as why_not:
        if not why_not:
            await remove_tree(settings.data_dir / "repos" / f"{entry.clone}.git")
    return Unregistered(entry.id, entry.origin, why_not)


@contextmanager
def _alone(data_dir: Path) -> Iterator[str]:
    """Hold the data directory; yields who is at work here, '' where it is nobody."""
    try:
        with lock.hold(data_dir):
            yield "a process has workspaces open here; wait for it" if at_work(data_dir) else ""
            return
    except lock.Taken:
        pass
    address = lock.find(data_dir)
    yield f"process {address.pid} serves {data_dir}; stop it first" if address else f"another moothall starts on {data_dir}"
