"""What goes of what lies in the data directory: `moothall clean`, `moothall repo remove` and
`moothall log prune` remove nothing that is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moothall.app import data_dir_lock
from moothall.app.bus import open_log
from moothall.app.graph import open_answers
from moothall.app.repositories import trusted_repositories
from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.events.adapter import pruning
from moothall.repositories.clone import TrustedClone
from moothall.workspace.cleaning import (
    StoredItem,
    at_work,
    choose,
    clean,
    list_kept,
    prune_preparations,
)
from moothall.workspace.executor_client import remove_tree


@dataclass(frozen=True, slots=True)
class Cleaned:
    """All that was there, what went (or would go), and why nothing could; `busy` was in use and
    stays.
    """

    there: Sequence[StoredItem]
    gone: Sequence[StoredItem]
    busy: Sequence[StoredItem]
    why_not: str = ""


async def clean_up(
    settings: Settings,
    *,
    older_than: float | None,
    everything: bool,
    dry_run: bool,
    removed: Callable[[StoredItem], None],
) -> Cleaned:
    """Remove what was not used for `older_than` days (`workspace.keep_days` by default), or
    everything.
    """
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
    """Remove a repository from the registry, and its clone where nobody may be at work on it.
    Raises `NotFound`.
    """
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
        with data_dir_lock.hold(data_dir):
            if data_dir_lock.is_shared(data_dir):
                yield f"processes that serve some roles work on {data_dir}; stop them first"
            else:
                yield "a process has workspaces open here; wait for it" if at_work(data_dir) else ""
            return
    except data_dir_lock.DirectoryTaken:
        pass
    address = data_dir_lock.find(data_dir)
    yield (
        f"process {address.pid} serves {data_dir}; stop it first"
        if address
        else f"another moothall starts on {data_dir}"
    )


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many of each went. `preparations` is None where a process serves: its workspaces may show
    them.
    """

    events: int
    documents: int
    blobs: int
    patches: int
    preparations: int | None


async def prune(
    settings: Settings, keep: int, report_progress: Callable[[str], None]
) -> PruneReport:
    """Keep the last `keep` events; drop documents, large values and patches that the rest does not
    tell of, and
    checkouts and environments that were not used for `workspace.keep_days`.
    """
    async with open_answers(settings):
        pass  # the graph has read what goes now: nobody could tell it later
    preparations, others = None, data_dir_lock.is_shared(settings.data_dir)
    try:
        with data_dir_lock.hold(settings.data_dir):
            if not others:
                preparations = await prune_preparations(
                    settings.data_dir, settings.workspace.keep_days
                )
    except data_dir_lock.DirectoryTaken:
        others = True
    if others:
        report_progress(
            "checkouts and environments stay: a process serves this data directory and may be "
            "working on them"
        )
    async with open_log(settings, report_progress) as bus:
        events = await pruning.prune(bus, keep)
        documents = await pruning.prune_documents(bus)
        blobs = await pruning.prune_blobs(bus)
        commits = await pruning.told_commits(bus)
    patches = 0
    for clone in sorted((settings.data_dir / "repos").glob("*.git")):
        patches += await TrustedClone(clone, settings.workspace).prune(commits)
    return PruneReport(events, documents, blobs, patches, preparations)
