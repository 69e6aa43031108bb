"""Paths of prepared data in the data directory, and their locks. Listing and removal of prepared
data on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from moothall import processes
from moothall.domain import codec
from moothall.domain.ids import digest
from moothall.domain.repository import Base, Prepared
from moothall.errors import InvalidRequest
from moothall.processes import lock_file, try_lock
from moothall.sandbox.bubblewrap import ENVIRONMENT, interpreter
from moothall.workspace.executor_client import ExecutorSetup, remove_tree
from moothall.workspace.toolchains import ChosenToolchain, choose

# Paths of prepared data in the data directory, and their locks.


_KEY_CHARS = 32
_PYTHON = frozenset({"python", "python3", "pip", "pip3"})


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths beneath one data directory."""

    data_dir: Path

    @property
    def run(self) -> Path:
        """Folders of open workspaces, one for each process."""
        return self.data_dir / "run"

    def prepared_file(self, key: str) -> Path:
        """Return the path of the result of preparing a base, as JSON."""
        return self.data_dir / "prepared" / f"{key}.json"

    def tree(self, key: str) -> Path:
        """Return the path of the shared checkout."""
        return self.data_dir / "checkouts" / key

    def history(self, key: str) -> Path:
        """Return the folder with the git directory that the shell of workspaces reads."""
        return self.data_dir / "histories" / key

    def environment(self, key: str) -> Path:
        """Return the folder of an environment: `env` for /env, `layer` for the checkout."""
        return self.data_dir / "environments" / key

    def executor_setup(self, base: Base, key: str) -> ExecutorSetup:
        """Return the setup of a workspace's executor on `base`."""
        env_key, toolchains = environment_key(base), choose(base.profile.needs)
        history = self.history(key) if self.history(key).is_dir() else None
        setup = ExecutorSetup(
            key, (self.tree(key),), toolchains=toolchains.folders, image=base.image, history=history
        )
        if not env_key:
            return setup
        folder = self.environment(env_key)
        layer = (folder / "layer",) if (folder / "layer").is_dir() else ()
        return replace(
            setup,
            tree=(*layer, self.tree(key)),
            env=folder / "env",
            python=foreign_python(toolchains),
        )

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock against all processes that share the data directory."""
        return processes.lock(self.data_dir / "locks" / name)


def uses_environment(base: Base) -> bool:
    """Return whether the profile needs a Python environment at /env: set-up installs into it, or
    checks run from it.
    """
    profile = base.profile
    steps = (*(step.argv for step in profile.steps), *(step.argv for step in profile.builds))
    commands = (*profile.setup, *steps, *profile.checks.values())
    programs = {argv[0] for argv in commands if argv}
    return any(
        program in _PYTHON or program.startswith(f"{ENVIRONMENT}/bin/") for program in programs
    )


def environment_key(base: Base) -> str:
    """Return the key of an environment, equal for all commits with the same lock files in the same
    image. Return '' if nothing is set up.
    """
    profile = base.profile
    if not profile.setup and not uses_environment(base):
        return ""
    toolchains = choose(profile.needs)
    python = (
        sys.version
        if foreign_python(toolchains) is None
        else f"{toolchains.python.version} {toolchains.python.program}"
    )
    other_parts = (*map(str, toolchains.folders), *map(repr, profile.steps), *_image(base))
    return digest(base.repository, profile.lock_digest, repr(profile.setup), python, *other_parts)[
        :_KEY_CHARS
    ]


def _image(base: Base) -> tuple[str, ...]:
    return (f"image {base.image}",) if base.image else ()


def foreign_python(toolchains: ChosenToolchain) -> Path | None:
    """Return the prefix of an environment's Python, None if it is our own."""
    return None if toolchains.python.program == interpreter() else toolchains.python.home


def prepared_key(base: Base) -> str:
    """Return the key of a prepared base, from its commit, profile and environment."""
    checks = repr(sorted(base.profile.checks.items())) + (
        repr(sorted(base.profile.folders.items())) if base.profile.folders else ""
    )
    checks += repr(base.profile.builds) if base.profile.builds else ""
    return digest(base.repository, base.sha, checks, environment_key(base), *_image(base))[
        :_KEY_CHARS
    ]


# Listing and removal of prepared data on disk. All of it is created again when it is needed.


DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A stored item: a checkout, history, environment, base environment (starter) or clone.

    size: in bytes.
    used: the time of its last use, in seconds since 1970.
    lock: the name of the lock that its users hold.
    """

    kind: str
    path: Path
    size: int
    used: float
    lock: str = ""


def list_stored(data_dir: Path) -> tuple[StoredItem, ...]:
    """Return all stored items, the largest first. This blocks: it reads all folders."""
    layout = Layout(data_dir)
    items: list[StoredItem] = []
    records = list(layout.prepared_file("-").parent.glob("[!.]*.json"))
    last_use_by_environment: dict[str, float] = {}
    for record in records:
        name = environment_name(record)
        last_use_by_environment[name] = max(
            last_use_by_environment.get(name, 0.0), _last_used(record)
        )
    for path in _folders(layout.tree("-").parent):
        record = layout.prepared_file(path.name)
        items.append(
            StoredItem(
                "checkout",
                path,
                disk_size(path),
                _last_used(record if record.exists() else path),
                path.name,
            )
        )
    for path in _folders(layout.history("-").parent):
        record = layout.prepared_file(path.name)
        items.append(
            StoredItem(
                "history",
                path,
                disk_size(path),
                _last_used(record if record.exists() else path),
                path.name,
            )
        )
    for path in _folders(layout.environment("-").parent):
        kind = "starter" if path.name.startswith("starter-") else "environment"
        items.append(
            StoredItem(
                kind,
                path,
                disk_size(path),
                max(_last_used(path), last_use_by_environment.get(path.name, 0.0)),
                f"env-{path.name}",
            )
        )
    clones = (path for path in _folders(data_dir / "repos") if path.suffix == ".git")
    items += [
        StoredItem("clone", path, disk_size(path), max(map(_last_used, (path, *_parts(path)))))
        for path in clones
    ]
    return tuple(sorted(items, key=lambda item: item.size, reverse=True))


def choose_removable(
    items: Sequence[StoredItem], *, older_than: float, everything: bool, registered: Sequence[str]
) -> tuple[StoredItem, ...]:
    """Return the items to remove: those not used for `older_than` days, or everything.

    Clones also contain the patches of councils. Those of registered repositories are kept, unless
    everything is removed.
    """
    cutoff = time.time() - older_than * DAY
    return tuple(
        item
        for item in items
        if everything
        or (item.path.stem not in registered if item.kind == "clone" else item.used < cutoff)
    )


async def clean(
    data_dir: Path, items: Sequence[StoredItem], removed: Callable[[StoredItem], None]
) -> tuple[StoredItem, ...]:
    """Remove items, and return those that are in use and were kept. The caller must hold the data
    directory.
    """
    layout, busy = Layout(data_dir), []
    for item in items:
        with _try_hold(data_dir / "locks", item.lock) as free:
            if not free:
                busy.append(item)
                continue
            if item.kind == "checkout":
                layout.prepared_file(item.path.name).unlink(missing_ok=True)
            await remove_tree(item.path)
        removed(item)
    return tuple(busy)


def has_open_workspaces(data_dir: Path) -> bool:
    """Return whether a process has open workspaces here."""
    for folder in _folders(Layout(data_dir).run):
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being created or removed
        try:
            if not try_lock(descriptor):
                return True
        finally:
            os.close(descriptor)
    return False


def disk_size(folder: Path) -> int:
    """Return the bytes on disk in a folder. A file with several names counts once."""
    seen_inodes: set[tuple[int, int]] = set()
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            try:
                status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - a Path for each of a million files costs seconds
            except OSError:
                continue
            if status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen_inodes:
                    continue
                seen_inodes.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total


@contextmanager
def _try_hold(folder: Path, name: str) -> Iterator[bool]:
    """Hold a lock of the layout, and yield whether it was free."""
    if not name:
        yield True
        return
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / name) as free:
        yield free


def _folders(parent: Path) -> list[Path]:
    """Return the folders in `parent`, except for those that are being created."""
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
    """Remove checkouts, histories, their records, and environments that were not used for
    `keep_days`. Return their number.

    The caller must hold the data directory: a warm workspace uses a checkout as long as its process
    lives.
    """
    layout = Layout(data_dir)
    cutoff = time.time() - keep_days * DAY
    kept_records, old_keys = await asyncio.to_thread(_split_records, layout, cutoff)
    for key in old_keys:
        layout.prepared_file(key).unlink()
        (data_dir / "locks" / key).unlink(missing_ok=True)
    kept_keys = {path.stem for path in kept_records}
    parents = (layout.tree("-").parent, layout.history("-").parent)
    base_folders = [
        folder
        for parent in parents
        for folder in await asyncio.to_thread(_unused_folders, parent, cutoff)
    ]
    unused = [folder for folder in base_folders if folder.name not in kept_keys]
    used_environments = {
        name for path in kept_records if (name := await asyncio.to_thread(environment_name, path))
    }
    environments = await asyncio.to_thread(_unused_folders, layout.environment("-").parent, cutoff)
    unused += [folder for folder in environments if folder.name not in used_environments]
    for folder in unused:
        await remove_tree(folder)
    return len(unused)


def _split_records(layout: Layout, cutoff: float) -> tuple[list[Path], list[str]]:
    """Return the records that are kept, and the keys of the others."""
    records = list(layout.prepared_file("-").parent.glob("*.json"))
    old_keys = [path.stem for path in records if path.stat().st_mtime < cutoff]
    return [path for path in records if path.stem not in old_keys], old_keys


def _unused_folders(parent: Path, cutoff: float) -> list[Path]:
    return [path for path in parent.glob("*") if path.is_dir() and path.stat().st_mtime < cutoff]


def environment_name(path: Path) -> str:
    """Return the name of the environment that a prepared base uses, or ''."""
    try:
        return environment_key(
            codec.load(Prepared, json.loads(path.read_text(encoding="utf-8"))).base
        )
    except (ValueError, InvalidRequest):
        return ""  # incomplete: it is prepared again
