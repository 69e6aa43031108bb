"""Operations on a whole data directory: backup, restore, and removal of old data."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from moothall import __version__
from moothall.app import preflight
from moothall.app.bus import Bus, ReportProgress, bus_url, hold_or_find, open_log
from moothall.app.graph import open_answers
from moothall.app.repositories import trusted_repositories
from moothall.config import Settings
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel
from moothall.domain.ids import LOCAL, TaskId, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation, check_deliberation
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.events.adapter import (
    Snapshots,
    maintenance,
    open_bus,
    open_snapshots,
    ordered_streams,
)
from moothall.events.registry import EVENTS
from moothall.orchestrator.fork import find_decision, find_request
from moothall.orchestrator.service import REFUSAL_KEY
from moothall.repositories.clone import TrustedClone
from moothall.workspace.executor_client import remove_tree
from moothall.workspace.layout import (
    StoredItem,
    choose_removable,
    clean,
    has_open_workspaces,
    list_stored,
    prune_preparations,
)

# Removal from the data directory: `moothall clean`, `moothall repo remove` and `moothall log
# prune`. Nothing in use is removed.


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
        removable = choose_removable(
            items, older_than=days, everything=everything, registered=registered
        )
        if dry_run or refusal:
            return CleanReport(items, removable, (), refusal)
        busy = await clean(data_dir, removable, report_removed)
        return CleanReport(items, tuple(item for item in removable if item not in busy), busy)


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
    for registration in (*(alias for alias in registry.all() if alias.of == entry.id), entry):
        registry.remove(registration.id)
    with _hold_directory(settings.data_dir) as refusal:
        if not refusal:
            await remove_tree(settings.data_dir / "repos" / f"{entry.clone}.git")
    return Unregistered(entry.id, entry.origin, refusal)


@contextmanager
def _hold_directory(data_dir: Path) -> Iterator[str]:
    """Hold the data directory. Yields which process is using it, or an empty string."""
    try:
        with preflight.hold(data_dir):
            if preflight.is_shared(data_dir):
                yield f"processes that serve some roles use {data_dir}; stop them first"
            else:
                yield (
                    "a process has open workspaces here; wait until it ends"
                    if has_open_workspaces(data_dir)
                    else ""
                )
            return
    except preflight.DirectoryTaken:
        pass
    address = preflight.find(data_dir)
    yield (
        f"process {address.pid} serves {data_dir}; stop it first"
        if address
        else f"another moothall process is starting on {data_dir}"
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
    preparations, shared = None, preflight.is_shared(settings.data_dir)
    try:
        with preflight.hold(settings.data_dir):
            if not shared:
                preparations = await prune_preparations(
                    settings.data_dir, settings.workspace.keep_days
                )
    except preflight.DirectoryTaken:
        shared = True
    if shared:
        report_progress(
            "checkouts and environments stay: a process serves this data directory and may be "
            "working on them"
        )
    async with open_log(settings, report_progress) as bus:
        events = await maintenance.prune(bus, keep)
        documents = await maintenance.prune_documents(bus)
        blobs = await maintenance.prune_blobs(bus)
        commits = await maintenance.named_commits(bus)
        audit = await maintenance.prune_audit(bus, settings.guard.audit_days)
    patches = 0
    for clone in sorted((settings.data_dir / "repos").glob("*.git")):
        patches += await TrustedClone(clone, settings.workspace).prune(commits)
    return PruneReport(events, documents, blobs, patches, preparations, audit)


# The archive of a backup: a tar file with the files of a data directory and snapshots.


_SECRETS = ("guard.key", "token")
_DATABASES = ("accounts.db", "tokens.db")
_FOLDERS = ("acp", "repositories", "evaluations", "mcp", "wasm")
_ALLOWED_IN_EMPTY = frozenset({"lock", "logs"})
_CHUNK_BYTES = 128 * 1024
_LINE_BYTES = 1 << 20


@contextmanager
def new_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a new archive for its owner only, since it holds keys and tokens. It appears at `path`
    when the block ends without an error. Raises `ConfigurationError`.
    """
    partial = path.with_name(f"{path.name}.partial")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        if path.exists():
            raise ConfigurationError(f"{path} already exists; name a new file")
        with os.fdopen(os.open(partial, flags, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                yield tar
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an existing archive. Raises `ConfigurationError`."""
    try:
        tar = tarfile.open(path, "r:")  # noqa: SIM115 - the block below closes it
    except (OSError, tarfile.TarError) as error:
        raise ConfigurationError(f"{path} cannot be read as a backup: {error}") from error
    with tar:
        yield tar


def check_empty(data_dir: Path) -> None:
    """Raise `ConfigurationError` if a data directory has content."""
    if names := sorted({entry.name for entry in data_dir.iterdir()} - _ALLOWED_IN_EMPTY):
        raise ConfigurationError(
            f"{data_dir} is not empty (it has {', '.join(names[:5])}): set MOOTHALL_DATA_DIR to an "
            "empty folder, or empty this one"
        )


def add_files(tar: tarfile.TarFile, data_dir: Path, spool: Path) -> int:
    """Add the files of a data directory, and return the number of clones. Everything else in it is
    recreated when needed.
    """
    for name in _SECRETS:
        if (data_dir / name).exists():
            tar.add(data_dir / name, f"files/{name}")
    for name in _DATABASES:
        if (data_dir / name).exists():
            _add_database(tar, data_dir / name, spool)
    for name in _FOLDERS:
        for path in _files_below(data_dir / name):
            _add_file(tar, data_dir, path)
    _add_audit(tar, data_dir)
    clones = sorted((data_dir / "repos").glob("*.git"))
    for clone in clones:
        _add_clone(tar, data_dir, clone)
    return len(clones)


def _add_audit(tar: tarfile.TarFile, data_dir: Path) -> None:
    """Add the chains of the audit. The heads come first, so that none points beyond the end of its
    chain.
    """
    paths = sorted(_files_below(data_dir / "audit"), key=lambda path: path.suffix != ".head")
    for path in paths:
        _add_file(tar, data_dir, path, whole_lines=path.suffix == ".jsonl")


def _add_clone(tar: tarfile.TarFile, data_dir: Path, clone: Path) -> None:
    """Add a clone, references first. Objects are never removed, so a list of objects that is read
    later contains all that the references need.
    """
    objects = clone / "objects"
    for path in _files_below(clone):
        if objects not in path.parents and path.suffix != ".lock":
            _add_file(tar, data_dir, path)
    for path in _files_below(objects):
        if not path.name.startswith("tmp_"):
            _add_file(tar, data_dir, path)


def _files_below(folder: Path) -> Sequence[Path]:
    """Return the current files of a folder and its subfolders, without symbolic links."""
    paths = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _add_file(
    tar: tarfile.TarFile, data_dir: Path, path: Path, *, whole_lines: bool = False
) -> None:
    """Add a file with its current length, or up to its last whole line. Skip a removed file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        member = tar.gettarinfo(arcname=f"files/{path.relative_to(data_dir)}", fileobj=file)
        member.type, member.linkname = tarfile.REGTYPE, ""  # hard links are separate files here
        member.size = os.fstat(file.fileno()).st_size
        if whole_lines:
            member.size = _end_of_last_line(file, member.size)
        file.seek(0)
        tar.addfile(member, file)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    start = max(size - _LINE_BYTES, 0)
    file.seek(start)
    return start + file.read(size - start).rfind(b"\n") + 1


def _add_database(tar: tarfile.TarFile, path: Path, spool: Path) -> None:
    """Add a consistent copy of an SQLite file that others may be changing."""
    with tempfile.TemporaryDirectory(dir=spool) as folder:
        copy = Path(folder) / path.name
        copy.touch(mode=0o600)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        tar.add(copy, f"files/{path.name}")


def add_content(tar: tarfile.TarFile, name: str, content: BinaryIO) -> None:
    """Add a file with this content."""
    member = tarfile.TarInfo(name)
    member.mode = 0o600
    member.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    tar.addfile(member, content)


def extract_files(tar: tarfile.TarFile, data_dir: Path) -> None:
    """Restore the files of a data directory."""
    for member in tar.getmembers():
        if member.isfile() and member.name.startswith("files/"):
            name = member.name.removeprefix("files/")
            tar.extract(member.replace(name=name, deep=False), data_dir, filter="data")


def read_chunks(tar: tarfile.TarFile, stream: str) -> Iterator[bytes]:
    """Yield the snapshot of a stream."""
    file = cast("BinaryIO", tar.extractfile(f"streams/{stream}"))
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


# Backup and restore of a data directory and its bus, while others write.
#
# A backup is a tar file: snapshots of the streams, in an order that keeps references complete, then
# the files of the data directory. A restored log ends at the mark: the last event of its snapshot.


_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The contents of a backup. `mark` is the seq of its last event; `created` is an ISO time."""

    mark: int
    events: int
    clones: int
    created: str


async def save_backup(
    settings: Settings, path: Path, report_progress: ReportProgress
) -> BackupReport:
    """Write a backup to `path`, which is created only when the backup is complete. Raises
    `ConfigurationError`, `BusUnavailable`.
    """
    async with AsyncExitStack() as stack:
        tar = stack.enter_context(new_archive(path))
        address = await hold_or_find(settings.data_dir, report_progress, stack)
        url = (
            address.bus_url
            if address is not None
            else await stack.enter_async_context(bus_url(settings.bus, settings.data_dir))
        )
        await stack.enter_async_context(open_bus(settings.bus, url))  # creates missing streams
        snapshots = await stack.enter_async_context(open_snapshots(settings.bus, url))
        return await _save_files(snapshots, settings.data_dir, tar, path.parent)


async def _save_files(
    snapshots: Snapshots, data_dir: Path, tar: tarfile.TarFile, spool: Path
) -> BackupReport:
    descriptions: dict[str, Mapping[str, Any]] = {}
    for stream in ordered_streams():
        with tempfile.TemporaryFile(dir=spool) as chunks:
            descriptions[stream] = await snapshots.save(stream, chunks.write)
            chunks.seek(0)
            await asyncio.to_thread(add_content, tar, f"streams/{stream}", cast("BinaryIO", chunks))
    clones = await asyncio.to_thread(add_files, tar, data_dir, spool)
    state = descriptions[EVENTS.name]["state"]
    report = BackupReport(
        mark=state["last_seq"],
        events=state["messages"],
        clones=clones,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    manifest = {"format": _FORMAT, "version": __version__, "streams": descriptions}
    content = json.dumps(manifest | dump(report)).encode()
    add_content(tar, "manifest.json", io.BytesIO(content))
    return report


async def restore_backup(
    settings: Settings, path: Path, report_progress: ReportProgress
) -> BackupReport:
    """Restore a backup into an empty data directory and an empty bus. Raises `ConfigurationError`,
    `BusUnavailable`.
    """
    data_dir = settings.data_dir
    async with AsyncExitStack() as stack:
        tar = stack.enter_context(open_archive(path))
        manifest = _read_manifest(tar, path)
        report = load(BackupReport, {name: manifest[name] for name in BackupReport.__slots__})
        try:
            stack.enter_context(preflight.hold(data_dir))
        except preflight.DirectoryTaken as error:
            raise ConfigurationError(
                f"another process serves {data_dir}: stop it, and empty the directory"
            ) from error
        check_empty(data_dir)
        await asyncio.to_thread(extract_files, tar, data_dir)
        url = await stack.enter_async_context(bus_url(settings.bus, data_dir))
        async with open_snapshots(settings.bus, url) as snapshots:
            for stream, about in manifest["streams"].items():
                report_progress(f"restoring {stream}")
                await snapshots.restore(stream, about, read_chunks(tar, stream))
        async with open_bus(settings.bus, url, alone=not settings.bus.url) as bus:
            await _rebuild(bus)
    return report


def _read_manifest(tar: tarfile.TarFile, path: Path) -> Mapping[str, Any]:
    try:
        manifest: Mapping[str, Any] = json.load(cast("BinaryIO", tar.extractfile("manifest.json")))
    except (KeyError, ValueError, tarfile.TarError) as error:
        raise ConfigurationError(f"{path} is not a complete backup of moothall") from error
    if manifest.get("format") != _FORMAT:
        raise ConfigurationError(
            f"{path} has the format {manifest.get('format')} of moothall "
            f"{manifest.get('version')}; this version reads {_FORMAT}"
        )
    return manifest


async def _rebuild(bus: Bus) -> None:
    """Derive status documents and work from the log, and queue undecided deliberations again."""
    for name in await bus.list_ids(Channel.RESULTS):
        task_key = TaskKey(name)
        request = await find_request(bus, task_key)
        if request is None:
            continue
        decision = await find_decision(bus, task_key)
        if decision is not None:
            await bus.put(task_key, dump(load(Outcome, decision.event.data)))
            continue
        try:
            deliberation = check_deliberation(load(Deliberation, request.event.data))
        except InvalidRequest:
            continue  # a host made it a dead letter when it was delivered
        outcome = Outcome(
            task_id=TaskId(task_key),
            status=DeliberationStatus.PENDING,
            tenant=deliberation.tenant,
            role=deliberation.role,
            agent_count=len(deliberation.seats),
        )
        await bus.put(task_key, dump(outcome))
        if REFUSAL_KEY not in request.event.data:
            await bus.enqueue(Channel.WORK.of(deliberation.role), request.event)
