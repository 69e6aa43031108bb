"""Sets up a bus: creates the streams, consumers and buckets of the registry; repeating it is
harmless. And the key-value buckets themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, BadRequestError, NotFoundError

from moothall.config import BusSettings
from moothall.errors import (
    AlreadyExists,
    BusUnavailable,
    ConfigurationError,
    InvalidRequest,
    NotFound,
)
from moothall.events.envelope import EnvelopeCodec
from moothall.events.nats.connection import log, reason
from moothall.events.nats.fast_client import keep_cancellation
from moothall.events.nats.stream_store import (
    BLOB_CHUNKS,
    BLOB_ENTRIES,
    BLOBS_STREAM,
    FIRST,
    LAST_SEQ,
    Stored,
)
from moothall.events.raw_store import Raw
from moothall.events.registry import (
    BUCKETS,
    DUPLICATE_WINDOW,
    DURABLES,
    STREAMS,
    BucketSpec,
    DurableSpec,
    StreamSpec,
)

# Key-value buckets: the newest document under each key, read by many processes as it changes.


def bucket_stream(spec: BucketSpec) -> str:
    """Return the name of the stream behind a bucket."""
    return f"KV_{spec.name}"


def bucket_prefix(spec: BucketSpec) -> str:
    """Return the prefix of the subjects of a bucket's keys."""
    return f"$KV.{spec.name}."


def key_subject(spec: BucketSpec, key: str) -> str:
    """Return the subject of a key. Raises `InvalidRequest`."""
    return bucket_prefix(spec) + spec.check(key)


@dataclass(frozen=True, slots=True)
class KvBucket:
    """One bucket of the registry. Implements `ports.Bucket`."""

    stored: Stored
    packer: EnvelopeCodec
    spec: BucketSpec

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an older one. Raises `BusUnavailable`, `InvalidRequest`."""
        await self.stored.put_raw(
            key_subject(self.spec, key), await self.packer.pack_document(document)
        )

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store the first document under a key. Raises `AlreadyExists` and what `put` raises."""
        try:
            await self.stored.put_raw(
                key_subject(self.spec, key), await self.packer.pack_document(document), FIRST
            )
        except AlreadyExists as error:
            raise AlreadyExists(f"the bucket {self.spec.name} already has the key {key}") from error

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Replace a revision, 0 for none. Raises `AlreadyExists` if another write was faster, and
        what `put` raises.
        """
        headers = {LAST_SEQ: str(revision)}
        await self.stored.put_raw(
            key_subject(self.spec, key), await self.packer.pack_document(document), headers
        )

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        return (await self.get_with_revision(key))[0]

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision; None and 0 where there is none."""
        subject = key_subject(self.spec, key)
        try:
            message = await self.stored.retry(
                f"return {self.spec.name} {key}",
                lambda: self.stored.js.get_msg(bucket_stream(self.spec), subject=subject),
            )
        except NotFoundError:
            return None, 0
        return await self.packer.unpack_document(message.data or b""), message.seq or 0

    async def remove(self, key: str) -> None:
        """Remove the document under a key, if there is one."""
        await self.stored.drop(bucket_stream(self.spec), key_subject(self.spec, key))

    async def keys(self) -> Sequence[str]:
        """Return all keys, sorted."""
        subjects = await self.stored.subjects(
            bucket_stream(self.spec), f"{bucket_prefix(self.spec)}>"
        )
        return [subject.removeprefix(bucket_prefix(self.spec)) for subject in subjects]

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all documents by key."""
        documents: dict[str, Mapping[str, Any]] = {}
        async with aclosing(self.stored.raw(bucket_stream(self.spec))) as records:
            async for raw in records:
                await self._add_document(documents, raw)
        return documents

    async def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (key, document) for all documents, then for each change, until closed."""
        async with aclosing(self.stored.read(bucket_stream(self.spec), (), 0, None)) as records:
            async for raw in records:
                documents: dict[str, Mapping[str, Any]] = {}
                await self._add_document(documents, raw)
                for entry in documents.items():
                    yield entry

    async def _add_document(self, documents: dict[str, Mapping[str, Any]], raw: Raw) -> None:
        key = raw.subject.removeprefix(bucket_prefix(self.spec))
        try:
            documents[key] = await self.packer.unpack_document(raw.data)
        except (InvalidRequest, NotFound) as error:
            log.warning("document skipped", bucket=self.spec.name, key=key, reason=error.message)


# Creates the streams, consumers and buckets of the registry on a bus; repeating it is harmless.


_OTHER_CONFIGURATION = 10058
_UNAVAILABLE = 503
_NO_PEERS, _NO_LEADER = 10005, 10009
_MINIMAL_ACK_WAIT, _REDELIVERY_SECONDS = 0.01, 0.3
_WINDOW = 120.0
"""The server's default `duplicate_window`, given explicitly to make configurations comparable."""


def _stream_config(spec: StreamSpec, settings: BusSettings) -> api.StreamConfig:
    return api.StreamConfig(
        name=spec.name,
        description=spec.about,
        subjects=list(spec.subjects),
        retention=api.RetentionPolicy(spec.retention),
        max_age=spec.max_age,
        # A full stream refuses new messages: dropping old ones would lose them silently.
        discard=api.DiscardPolicy.NEW,
        storage=api.StorageType.FILE,
        num_replicas=settings.replicas,
        duplicate_window=DUPLICATE_WINDOW,
        allow_direct=True,
    )


def _bucket_config(spec: BucketSpec, settings: BusSettings) -> api.StreamConfig:
    return api.StreamConfig(
        name=bucket_stream(spec),
        description=spec.about,
        subjects=[f"{bucket_prefix(spec)}>"],
        max_msgs_per_subject=1,
        max_age=spec.max_age,
        allow_rollup_hdrs=True,
        deny_delete=True,
        discard=api.DiscardPolicy.NEW,
        storage=api.StorageType.FILE,
        num_replicas=settings.replicas,
        duplicate_window=_WINDOW,
        allow_direct=True,
    )


def _is_configured(current: api.Base, expected: api.Base) -> bool:
    """Return whether the current configuration has all expected values. If so, no change is
    requested, so a user without that permission can start.
    """
    existing = current.as_dict()
    return all(existing.get(name) == value for name, value in expected.as_dict().items())


async def _ensure_stream(js: JetStreamContext, config: api.StreamConfig) -> None:
    with suppress(NotFoundError):
        if _is_configured(
            (await keep_cancellation(js.stream_info(config.name or ""))).config, config
        ):
            return
    try:
        await keep_cancellation(js.add_stream(config))
    except BadRequestError as error:
        if error.err_code != _OTHER_CONFIGURATION:
            raise
        await keep_cancellation(js.update_stream(config))


async def ensure_durable(
    js: JetStreamContext, settings: BusSettings, spec: DurableSpec, ack_wait: float | None = None
) -> api.ConsumerInfo:
    """Create or update a durable consumer. `ack_wait` replaces the seconds of the settings."""
    config = api.ConsumerConfig(
        name=spec.name,
        durable_name=spec.name,
        description=spec.about,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=settings.ack_wait_seconds if ack_wait is None else ack_wait,
        # limited in moothall.events.delivery, so that the last failure leaves a dead letter
        max_deliver=-1,
        filter_subjects=list(spec.filters),
        max_ack_pending=10_000,
    )
    with suppress(NotFoundError):
        info: api.ConsumerInfo = await keep_cancellation(js.consumer_info(spec.stream, spec.name))
        if _is_configured(info.config, config):
            return info
    return await keep_cancellation(js.add_consumer(spec.stream, config=config))


async def _redeliver_held(
    js: JetStreamContext, settings: BusSettings, specs: Sequence[DurableSpec]
) -> None:
    """Redeliver all unacknowledged messages at once. The server checks a tenth of a second after
    the change.
    """
    for spec in specs:
        await ensure_durable(js, settings, spec, _MINIMAL_ACK_WAIT)
    await asyncio.sleep(_REDELIVERY_SECONDS)
    for spec in specs:
        await ensure_durable(js, settings, spec)


async def remove_done(js: JetStreamContext, spec: DurableSpec) -> int:
    """Remove work that was acked but is still stored; return the number of messages. A server that
    is killed may store the ack and lose the removal. It then never delivers the work and stores it
    forever. Raises the client's errors.
    """
    floor = (await keep_cancellation(js.consumer_info(spec.stream, spec.name))).ack_floor
    removed = 0
    for subject in spec.filters if floor is not None and floor.stream_seq else ():
        while True:
            try:
                oldest = await keep_cancellation(
                    js.get_msg(spec.stream, seq=1, subject=subject, next=True)
                )
            except NotFoundError:
                break
            if not oldest.seq or oldest.seq > floor.stream_seq:
                break
            await keep_cancellation(js.delete_msg(spec.stream, oldest.seq))
            removed += 1
    return removed


async def ensure(js: JetStreamContext, settings: BusSettings, *, alone: bool = False) -> None:
    """Create all streams, consumers and buckets. `alone`: every process that held messages before
    is gone. Raises `ConfigurationError` if an existing configuration cannot be changed.
    """
    try:
        blobs = api.StreamConfig(
            name=BLOBS_STREAM,
            subjects=[f"{BLOB_CHUNKS}>", f"{BLOB_ENTRIES}>"],
            allow_rollup_hdrs=True,
            discard=api.DiscardPolicy.NEW,
            storage=api.StorageType.FILE,
            num_replicas=settings.replicas,
            duplicate_window=_WINDOW,
            allow_direct=True,
        )
        configs = (
            *(_stream_config(stream, settings) for stream in STREAMS),
            *(_bucket_config(bucket, settings) for bucket in BUCKETS.values()),
            blobs,
        )
        await asyncio.gather(*(_ensure_stream(js, config) for config in configs))
        specs = tuple(DURABLES.values())
        consumers = await asyncio.gather(*(ensure_durable(js, settings, spec) for spec in specs))
        held_specs = [
            spec for spec, info in zip(specs, consumers, strict=True) if info.num_ack_pending
        ]
        if alone and held_specs:
            await _redeliver_held(js, settings, held_specs)
    except APIError as error:
        if error.code == _UNAVAILABLE or error.err_code in {_NO_PEERS, _NO_LEADER}:
            raise BusUnavailable(
                f"the bus cannot create the streams now: {error.description}; is JetStream "
                f"enabled, are {settings.replicas} servers running, is the store full?"
            ) from error
        raise ConfigurationError(f"the bus has conflicting streams: {error.description}") from error
    except (nats.errors.Error, TimeoutError) as error:
        raise BusUnavailable(
            f"the bus did not set up its streams: {reason(error)} Is JetStream enabled, and may "
            "these credentials create streams?"
        ) from error
