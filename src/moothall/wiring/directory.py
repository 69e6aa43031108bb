"""The data directory: which process serves it and how the others find that one, and what goes of what lies there.

`moothall clean`, `moothall repo remove` and `moothall log prune` remove nothing that is in use. Commands look here before they import what they work with,
so this imports none of that at its top.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.config import Settings
from moothall.disk import locked, write_private
from moothall.domain.identity import LOCAL
from moothall.errors import ConfigurationError

if TYPE_CHECKING:
    from moothall.workspace.cleaning import Kept


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the process that serves this data directory. Holds the bus's credentials: mode 0600. `page`: where a browser of this
    machine finds the page, empty where it does not.
    """

    pid: int
    bus_url: str
    grpc_port: int
    fingerprint: str
    page: str = ""


class Taken(Exception):
    """Another process serves this data directory."""


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, or raise `Taken`. The kernel lets go when the process ends, however it ends."""
    with ExitStack() as stack:
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = stack.enter_context(locked(data_dir / "lock"))
        except OSError as error:
            raise ConfigurationError(f"the data directory {data_dir} cannot be used: {error.strerror}") from error
        if not free:
            raise Taken
        withdraw(data_dir)  # of one who was killed
        yield


@contextmanager
def take_number(data_dir: Path) -> Iterator[int]:
    """Hold the first number, from 1, that no other process of this data directory has. The kernel takes it back when the process ends."""
    folder = data_dir / "processes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        with locked(folder / str(number)) as free:
            if free:
                yield number
                return


def is_shared(data_dir: Path) -> bool:
    """Whether processes work here that have a number, and may not hold the directory."""
    for path in (data_dir / "processes").glob("*"):
        with locked(path) as free:
            if not free:
                return True
    return False


def announce(data_dir: Path, address: Address) -> None:
    """Say where this process can be reached."""
    write_private(data_dir / "serving.json", json.dumps(asdict(address)))


def withdraw(data_dir: Path) -> None:
    """Nobody serves here any more."""
    (data_dir / "serving.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Address | None:
    """Return the serving process, or None while it is still starting."""
    try:
        return Address(**json.loads((data_dir / "serving.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """All that was there, what went (or would go), and why nothing could; `busy` was in use and stays."""

    there: Sequence[Kept]
    gone: Sequence[Kept]
    busy: Sequence[Kept]
    why_not: str = ""


async def clean_up(
    settings: Settings, *, older_than: float | None, everything: bool, dry_run: bool, removed: Callable[[Kept], None]
) -> Cleaned:
    """Remove what was not used for `older_than` days (`workspace.keep_days` by default), or everything."""
    from moothall.wiring.trusted import trusted_repositories
    from moothall.workspace.cleaning import choose, clean, list_kept

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
    from moothall.wiring.trusted import trusted_repositories
    from moothall.workspace.box import remove_tree

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
    from moothall.workspace.cleaning import at_work

    try:
        with hold(data_dir):
            if is_shared(data_dir):
                yield f"processes that serve some roles work on {data_dir}; stop them first"
            else:
                yield "a process has workspaces open here; wait for it" if at_work(data_dir) else ""
            return
    except Taken:
        pass
    address = find(data_dir)
    yield f"process {address.pid} serves {data_dir}; stop it first" if address else f"another moothall starts on {data_dir}"


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
    from moothall.bus.nats import pruning
    from moothall.repositories.clone import TrustedClone
    from moothall.wiring.bus import open_log
    from moothall.wiring.graph import open_answers
    from moothall.workspace.cleaning import prune_preparations

    async with open_answers(settings):
        pass  # the graph has read what goes now: nobody could tell it later
    preparations, others = None, is_shared(settings.data_dir)
    try:
        with hold(settings.data_dir):
            if not others:
                preparations = await prune_preparations(settings.data_dir, settings.workspace.keep_days)
    except Taken:
        others = True
    if others:
        tell("checkouts and environments stay: a process serves this data directory and may be working on them")
    async with open_log(settings, tell) as bus:
        events = await pruning.prune(bus, keep)
        documents = await pruning.prune_documents(bus)
        blobs = await pruning.prune_blobs(bus)
        commits = await pruning.told_commits(bus)
    patches = 0
    for clone in sorted((settings.data_dir / "repos").glob("*.git")):
        patches += await TrustedClone(clone, settings.workspace).prune(commits)
    return Pruned(events, documents, blobs, patches, preparations)
