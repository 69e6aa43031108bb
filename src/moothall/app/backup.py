"""Backup and restore of a data directory and its bus, while others write.

A backup is a tar file: snapshots of the streams, in an order that keeps references complete, then
the files of the data directory. A restored log ends at the mark: the last event of its snapshot.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from moothall import __version__
from moothall.app import data_dir_lock
from moothall.app.backup_files import (
    add_content,
    add_files,
    check_empty,
    extract_files,
    new_archive,
    open_archive,
    read_chunks,
)
from moothall.app.bus import Bus, ReportProgress, bus_url, hold_or_find
from moothall.config import Settings
from moothall.domain.codec import dump, load
from moothall.domain.ids import TaskId, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation, check_deliberation
from moothall.domain.topic import Channel
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.events.adapter import Snapshots, open_bus, open_snapshots, ordered_streams
from moothall.events.registry import EVENTS
from moothall.orchestrator.conversation_history import find_decision, find_request
from moothall.orchestrator.service import REFUSAL_KEY

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
        return await _save(snapshots, settings.data_dir, tar, path.parent)


async def _save(
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
            stack.enter_context(data_dir_lock.hold(data_dir))
        except data_dir_lock.DirectoryTaken as error:
            raise ConfigurationError(
                f"another process serves {data_dir}: stop it, and empty the directory"
            ) from error
        check_empty(data_dir)
        await asyncio.to_thread(extract_files, tar, data_dir)
        url = await stack.enter_async_context(bus_url(settings.bus, data_dir))
        async with open_snapshots(settings.bus, url) as snapshots:
            for stream, about in manifest["streams"].items():
                report_progress(f"restoring {stream}")
                config = {**about["config"], "num_replicas": settings.bus.replicas}
                chunks = read_chunks(tar, stream)
                await snapshots.restore(stream, {**about, "config": config}, chunks)
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
