"""`moothall log prune`: the oldest events, and what only they needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moothall.bus.log_admin import prune as prune_log
from moothall.bus.nats.pruning import commits_told, prune_blobs, prune_documents
from moothall.config import Settings
from moothall.repositories.clone import TrustedClone
from moothall.wiring import lock
from moothall.wiring.bus import open_log
from moothall.wiring.graph import open_answers
from moothall.workspace.pruning import prune_preparations


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many of each went. `preparations` is None where a process serves: its workspaces may show them."""

    events: int
    documents: int
    blobs: int
    patches: int
    preparations: int | None


async def prune(settings: Settings, keep: int, tell: Callable[[str], None]) -> Pruned:
    """Keep the last `keep` events; drop documents, large values and patches that the rest does not tell of, and
    checkouts and environments that were not used for `workspace.keep_days`.
    """
    async with open_answers(settings):
        pass  # the graph has read what goes now: nobody could tell it later
    preparations = None
    try:
        with lock.hold(settings.data_dir):
            preparations = await prune_preparations(settings.data_dir, settings.workspace.keep_days)
    except lock.Taken:
        tell("checkouts and environments stay: a process serves this data directory and may be working on them")
    async with open_log(settings, tell) as bus:
        events = await prune_log(bus, keep=keep)
        documents = await prune_documents(bus)
        blobs = await prune_blobs(bus)
        commits = await commits_told(bus)
    patches = 0
    for clone in sorted((settings.data_dir / "repos").glob("*.git")):
        patches += await TrustedClone(clone, settings.workspace).prune(commits)
    return Pruned(events, documents, blobs, patches, preparations)
