"""Maintenance of a bus: deletion of the oldest events, and snapshots of streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from moothall.config import BusSettings
from moothall.domain.event import Channel
from moothall.errors import BusUnavailable, ConfigurationError, InvalidRequest
from moothall.events.codec import load_json
from moothall.events.envelope import references
from moothall.events.lease import BUCKET
from moothall.events.nats.connection import connection, translate_errors
from moothall.events.nats.fast_client import FastClient
from moothall.events.nats.jetstream import JetStreamBus
from moothall.events.nats.requests import subscribed
from moothall.events.nats.setup import bucket_prefix, bucket_stream
from moothall.events.nats.stream_store import BLOB_CHUNKS, BLOB_ENTRIES, BLOBS_STREAM
from moothall.events.raw_store import RawStore
from moothall.events.registry import AUDIT, BUCKETS, DEAD, DOCUMENTS, EVENTS, STREAMS, WORK

# Deletes the oldest events and what only they referred to: status documents and large values.


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
    last_seqs: deque[int] = deque(maxlen=keep)
    async for raw in store.raw(EVENTS.name):
        last_seqs.append(raw.seq)
    return await store.purge(EVENTS.name, last_seqs[0]) if last_seqs else 0


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
    used_names = await _find_used(bus)
    dropped = {name: seq for name, seq in stored.items() if name not in used_names}
    for subject, nuid in dropped.values():
        # the entry first: without it nobody looks for the content
        await bus.drop(BLOBS_STREAM, subject)
        await bus.drop(BLOBS_STREAM, f"{BLOB_CHUNKS}{nuid}")
    return len(dropped)


async def _find_used(bus: JetStreamBus) -> frozenset[str]:
    """Return every value that a record refers to, directly or through another value."""
    used_names: set[str] = set()
    for stream in (
        EVENTS.name,
        WORK.name,
        DEAD.name,
        *(bucket_stream(bucket) for bucket in BUCKETS.values()),
    ):
        async for raw in bus.raw(stream):
            if b'"$blob"' in raw.data:
                used_names |= _references(raw.data)
    # A value may itself hold references: what it refers to is in use as well.
    async for raw in bus.raw(BLOBS_STREAM, subjects=(f"{BLOB_CHUNKS}>",)):
        if b'"$blob"' in raw.data:
            used_names |= {
                name.decode() for name in re.findall(rb'"\$blob": ?"([0-9a-f]{64})"', raw.data)
            }
    return frozenset(used_names)


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


# Snapshots of streams, which the server takes without interrupting writes, and their restoration. A
# restored stream has the same messages, sequence numbers and durable consumers.


_CHUNK_BYTES = 128 * 1024
_REFERRED = ("hidden", "bundles", "spent", "revoked")
"""Buckets whose documents are written before the events that refer to them."""
_SECONDS = 30.0
"""The maximum time between two chunks of a snapshot."""
_POLL_SECONDS = 0.05


def ordered_streams() -> tuple[str, ...]:
    """Return the streams of a backup, in the order in which they are saved: positions in the log
    before the log, and the documents and blobs that it refers to after it.

    Work and status documents follow from the log; leases belong to running processes.
    """
    buckets = {name: bucket_stream(spec) for name, spec in BUCKETS.items()}
    late = [buckets[name] for name in _REFERRED]
    early = [
        stream
        for name, stream in buckets.items()
        if name not in {*_REFERRED, BUCKET, DOCUMENTS.name}
    ]
    streams = [spec.name for spec in STREAMS if spec is not WORK]
    return (*early, *streams, *late, BLOBS_STREAM)


class Snapshots:
    """Snapshots on one connection. Methods raise `BusUnavailable` if the server does not answer,
    and `ConfigurationError` if it refuses.
    """

    def __init__(self, client: FastClient, replicas: int) -> None:
        self._client, self._replicas = client, replicas

    async def save(self, stream: str, write: Callable[[bytes], object]) -> Mapping[str, Any]:
        """Write a snapshot of a stream, and return its description: configuration and state."""
        chunks: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = self._client.new_inbox()
        async with subscribed(self._client, inbox, chunks.put_nowait):
            about = await self._call_api(
                f"$JS.API.STREAM.SNAPSHOT.{stream}",
                {"deliver_subject": inbox, "chunk_size": _CHUNK_BYTES},
            )
            while True:
                try:
                    async with asyncio.timeout(_SECONDS):
                        chunk = await chunks.get()
                except TimeoutError as error:
                    raise BusUnavailable(
                        f"the bus sent no more of the snapshot of {stream} for {_SECONDS:.0f} s"
                    ) from error
                if not chunk.data:
                    status = (chunk.headers or {}).get("Status", "204")
                    if status != "204":
                        raise BusUnavailable(f"the bus ended the snapshot of {stream}: {status}")
                    return {"config": about["config"], "state": about["state"]}
                write(chunk.data)
                if chunk.reply:  # the server waits for this ack before it sends more
                    self._client.publish_nowait(chunk.reply)

    async def restore(self, stream: str, about: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Create a stream from a snapshot and its description, with the copies that `bus.replicas`
        asks for. Raises `ConfigurationError` if it exists already.
        """
        config = {**about["config"], "num_replicas": self._replicas}
        answer = await self._call_api(
            f"$JS.API.STREAM.RESTORE.{stream}", {**about, "config": config}
        )
        with translate_errors(f"restore {stream}"):
            for chunk in chunks:
                await self._send_chunk(answer["deliver_subject"], chunk)
            reply = await self._send_chunk(answer["deliver_subject"], b"")
        _check_answer(json.loads(reply.data), f"restore {stream}")

    async def _send_chunk(self, subject: str, chunk: bytes) -> Msg:
        """Send a part of a snapshot, or b"" after the last one.

        In a cluster, our server may learn a little later that another one receives on the subject.
        """
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return await self._client.request(subject, chunk, _SECONDS)
            except nats.errors.NoRespondersError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_POLL_SECONDS)

    async def _call_api(self, subject: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = await self._client.request(subject, json.dumps(request).encode(), _SECONDS)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(
                f"the bus did not answer on {subject}: {error}. Older credentials of your own bus "
                "lack permission for backups; issue new ones with `moothall bus keys --renew`"
            ) from error
        return _check_answer(json.loads(answer.data), subject)


def _check_answer(answer: Mapping[str, Any], action: str) -> Mapping[str, Any]:
    if (error := answer.get("error")) is None:
        return answer
    raise ConfigurationError(f"the bus refused {action}: {error.get('description')}")


@asynccontextmanager
async def open_snapshots(settings: BusSettings, url: str) -> AsyncIterator[Snapshots]:
    """Connect to a bus without setting up its streams."""
    async with connection(settings, url, on_lost=lambda: None) as client:
        yield Snapshots(client, settings.replicas)
