"""Deletes the oldest events and what only they referred to: status documents and large values."""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest
from moothall.events.blobs import references
from moothall.events.buckets import BUCKETS, DOCUMENTS
from moothall.events.codec import load_json
from moothall.events.nats.jetstream import JetStreamBus
from moothall.events.nats.layout import (
    BLOB_CHUNKS,
    BLOB_ENTRIES,
    BLOBS_STREAM,
    bucket_prefix,
    bucket_stream,
)
from moothall.events.raw_store import RawStore
from moothall.events.registry import AUDIT, DEAD, EVENTS, WORK

MIN_AGE = timedelta(hours=1)
"""A value is stored before the event that refers to it, so a newer value may still be waiting for
its event.
"""

_COMMIT = re.compile(rb'"commit_sha": ?"([0-9a-f]{40})"')


async def prune(store: RawStore, keep: int) -> int:
    """Delete all events but the last `keep`. Returns the number of deleted events.

    Projections that have not read a deleted event never see it, so prune only events that all have
    read.
    Raises `InvalidRequest`.
    """
    if keep < 0:
        raise InvalidRequest(f"keep {keep} is not 0 or more")
    if keep == 0:
        return await store.purge(EVENTS.name, (await store.state(EVENTS.name)).last_seq + 1)
    # Seqs have gaps, so the first event to keep may be further back than counting seqs suggests.
    kept: deque[int] = deque(maxlen=keep)
    async for raw in store.raw(EVENTS.name):
        kept.append(raw.seq)
    return await store.purge(EVENTS.name, kept[0]) if kept else 0


async def prune_audit(bus: JetStreamBus, keep_days: int | None) -> int:
    """Delete the messages of the AUDIT stream that are older than `keep_days`, and return their
    number. None keeps all.
    """
    if keep_days is None:
        return 0
    limit = datetime.now(UTC) - timedelta(days=keep_days)
    newest_old_seq = 0
    async with aclosing(bus.replay((Channel.AUDIT.all,))) as events:
        async for recorded in events:
            if datetime.fromisoformat(recorded.event.time) >= limit:
                break
            newest_old_seq = recorded.seq
    return await bus.purge(AUDIT.name, newest_old_seq + 1)


async def prune_documents(bus: JetStreamBus) -> int:
    """Delete the status documents of deliberations that are no longer in the log; return their
    number.
    """
    logged = {
        subject.rpartition(".")[2] for subject in await bus.subjects(EVENTS.name, "agent.*.*")
    }
    dropped = [
        subject
        for subject in await bus.subjects(bucket_stream(DOCUMENTS), f"{bucket_prefix(DOCUMENTS)}>")
        if subject.rpartition(".")[2] not in logged
    ]
    for subject in dropped:
        await bus.drop(bucket_stream(DOCUMENTS), subject)
    return len(dropped)


async def prune_blobs(bus: JetStreamBus, *, young: timedelta = MIN_AGE) -> int:
    """Delete the large values that no record refers to and that are at least `young` old; return
    their number.

    The values are listed before the records are read, so that a value stored meanwhile is kept.
    """
    cutoff = datetime.now(UTC) - young
    stored = {}
    async for raw in bus.raw(BLOBS_STREAM, subjects=(f"{BLOB_ENTRIES}>",)):
        info = json.loads(raw.data)
        if raw.time <= cutoff:
            stored[str(info["name"])] = (raw.subject, str(info["nuid"]))
    if not stored:
        return 0
    used = await _find_used(bus)
    dropped = {name: seq for name, seq in stored.items() if name not in used}
    for subject, nuid in dropped.values():
        # the entry first: without it nobody looks for the content
        await bus.drop(BLOBS_STREAM, subject)
        await bus.drop(BLOBS_STREAM, f"{BLOB_CHUNKS}{nuid}")
    return len(dropped)


async def _find_used(bus: JetStreamBus) -> frozenset[str]:
    """Return every value that a record refers to, directly or through another value."""
    used: set[str] = set()
    for stream in (
        EVENTS.name,
        WORK.name,
        DEAD.name,
        *(bucket_stream(bucket) for bucket in BUCKETS.values()),
    ):
        async for raw in bus.raw(stream):
            if b'"$blob"' in raw.data:
                used |= _references(raw.data)
    # A value may itself hold references: what it refers to is in use as well.
    async for raw in bus.raw(BLOBS_STREAM, subjects=(f"{BLOB_CHUNKS}>",)):
        if b'"$blob"' in raw.data:
            used |= {
                found.decode() for found in re.findall(rb'"\$blob": ?"([0-9a-f]{64})"', raw.data)
            }
    return frozenset(used)


def _references(data: bytes) -> frozenset[str]:
    try:
        return references(load_json(data))
    except (InvalidRequest, ValueError):
        return frozenset()  # a dead letter need not be JSON


async def named_commits(bus: JetStreamBus) -> frozenset[str]:
    """Return every commit that the log or a status document names."""
    commits: set[str] = set()
    for stream in (EVENTS.name, bucket_stream(DOCUMENTS)):
        async for raw in bus.raw(stream):
            commits |= {sha.decode() for sha in _COMMIT.findall(raw.data)}
    return frozenset(commits)
