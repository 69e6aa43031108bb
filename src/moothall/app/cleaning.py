"""Removal from the data directory: `moothall clean`, `moothall repo remove` and `moothall log
prune`. Nothing in use is removed.
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
    choose,
    clean,
    has_open_workspaces,
    list_stored,
    prune_preparations,
)
from moothall.workspace.executor_client import remove_tree


@dataclass(frozen=True, slots=True)
class CleanReport:
    """All items, those removed (or to remove), and why nothing could be removed. `busy` items were
    in use and stay.
    """

    items: Sequence[StoredItem]
    removed: Sequence[StoredItem]
    busy: Sequence[StoredItem]
    refusal: str = ""


async def clean_up(
    settings: Settings,
    *,
    older_than: float | None,
    everything: bool,
    dry_run: bool,
    report_removed: Callable[[StoredItem], None],
) -> CleanReport:
    """Remove items that were not used for `older_than` days (`workspace.keep_days` by default), or
    everything.
    """
    data_dir = settings.data_dir
    with _hold_directory(data_dir) as refusal:
        items = await asyncio.to_thread(list_stored, data_dir)
        registered = [entry.clone for entry in trusted_repositories(settings).registry.all()]
        days = settings.workspace.keep_days if older_than is None else older_than
        chosen = choose(items, older_than=days, everything=everything, registered=registered)
        if dry_run or refusal:
            return CleanReport(items, chosen, (), refusal)
        busy = await clean(data_dir, chosen, report_removed)
        return CleanReport(items, tuple(item for item in chosen if item not in busy), busy)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A removed repository. `clone_left` says why its clone stays; it is empty if the clone was
    removed too.
    """

    id: str
    origin: str
    clone_left: str


async def unregister(settings: Settings, repository: str) -> Unregistered:
    """Remove a repository from the registry, and its clone if no process may be using it. Raises
    `NotFound`.
    """
    registry = trusted_repositories(settings).registry
    entry = registry.get(repository, LOCAL.tenant)
    for registration in (*(other for other in registry.all() if other.of == entry.id), entry):
        registry.remove(registration.id)
    with _hold_directory(settings.data_dir) as refusal:
        if not refusal:
            await remove_tree(settings.data_dir / "repos" / f"{entry.clone}.git")
    return Unregistered(entry.id, entry.origin, refusal)


@contextmanager
def _hold_directory(data_dir: Path) -> Iterator[str]:
    """Hold the data directory. Yields which process is using it, or an empty string."""
    try:
        with data_dir_lock.hold(data_dir):
            if data_dir_lock.is_shared(data_dir):
                yield f"processes that serve some roles work on {data_dir}; stop them first"
            else:
                yield (
                    "a process has workspaces open here; wait for it"
                    if has_open_workspaces(data_dir)
                    else ""
                )
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
    """The number of removed items of each kind. `preparations` is None if a process serves, because
    its workspaces may use them.
    """

    events: int
    documents: int
    blobs: int
    patches: int
    preparations: int | None
    audit: int


async def prune(
    settings: Settings, keep: int, report_progress: Callable[[str], None]
) -> PruneReport:
    """Keep the last `keep` events. Remove documents, large values and patches that the remaining
    events do not mention, and checkouts and environments that were not used for
    `workspace.keep_days`, and messages of the AUDIT stream that are older than `guard.audit_days`.
    """
    async with open_answers(settings):
        pass  # the graph must read the events before they are removed
    preparations, shared = None, data_dir_lock.is_shared(settings.data_dir)
    try:
        with data_dir_lock.hold(settings.data_dir):
            if not shared:
                preparations = await prune_preparations(
                    settings.data_dir, settings.workspace.keep_days
                )
    except data_dir_lock.DirectoryTaken:
        shared = True
    if shared:
        report_progress(
            "checkouts and environments stay: a process serves this data directory and may be "
            "working on them"
        )
    async with open_log(settings, report_progress) as bus:
        events = await pruning.prune(bus, keep)
        documents = await pruning.prune_documents(bus)
        blobs = await pruning.prune_blobs(bus)
        commits = await pruning.named_commits(bus)
        audit = await pruning.prune_audit(bus, settings.guard.audit_days)
    patches = 0
    for clone in sorted((settings.data_dir / "repos").glob("*.git")):
        patches += await TrustedClone(clone, settings.workspace).prune(commits)
    return PruneReport(events, documents, blobs, patches, preparations, audit)
