"""An in-memory bus with the same ports, codec and delivery rules as the real one, without a server.

It lacks what only a server has: other processes, a disk, and a network that fails. One contract
suite runs on both.
"""

from __future__ import annotations

import asyncio
import functools
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moothall.concurrency import Capacity
from moothall.config import BusSettings
from moothall.domain.event import Channel, Event, Recorded, Topic
from moothall.domain.text import scrub_all
from moothall.errors import (
    AlreadyExists,
    BusUnavailable,
    InvalidRequest,
    MoothallError,
    NotFound,
    Permanent,
    Temporary,
)
from moothall.events import batching, codec, delivery, raw_store, registry
from moothall.events.delivery import BUS_LIMITS, Ack, Bury, BusLimits, Nak, Turns, judge
from moothall.events.envelope import EnvelopeCodec, check_subjects, forward
from moothall.events.raw_store import NO_HEADERS, Raw, StreamState
from moothall.events.registry import DOCUMENTS, bucket_of
from moothall.ports import Answerer, Glance, Handler, Receipt

# Buckets and blobs.


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def put(self, sha256: str, content: bytes) -> None:
        """Store a blob."""
        self.stored[sha256] = content

    async def get(self, sha256: str) -> bytes:
        """Return the bytes. Raises `NotFound`."""
        try:
            return self.stored[sha256]
        except KeyError as error:
            raise NotFound(f"the stored value {sha256} is gone: it was pruned") from error


class MemoryBucket:
    """A bucket in a dictionary."""

    def __init__(self, name: str, packer: EnvelopeCodec) -> None:
        self._name = name
        self._packer = packer
        self._stored: dict[str, bytes] = {}
        self._revisions: dict[str, int] = {}
        self._changed_keys: list[str] = []
        self._changed = asyncio.Event()

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an earlier one."""
        bucket_of(self._name).check(key)
        self._stored[key] = await self._packer.pack_document(document)
        self._changed_keys.append(key)
        self._revisions[key] = len(self._changed_keys)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def remove(self, key: str) -> None:
        """Remove a document and its revisions."""
        self._stored.pop(key, None)
        self._revisions.pop(key, None)

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a new document. Raises `AlreadyExists`."""
        if key in self._stored:
            raise AlreadyExists(f"{self._name} has a {key} already")
        await self.put(key, document)

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Replace a document of a certain revision. Raises `AlreadyExists`."""
        if self._revisions.get(key, 0) != revision:
            raise AlreadyExists(f"{self._name} has another {key}")
        await self.put(key, document)

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision."""
        return await self.get(key), self._revisions.get(key, 0)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        bucket_of(self._name).check(key)
        stored = self._stored.get(key)
        return None if stored is None else await self._packer.unpack_document(stored)

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all documents, by key."""
        return {
            key: await self._packer.unpack_document(content)
            for key, content in self._stored.items()
        }

    async def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield the documents, then changes."""
        yielded = len(self._changed_keys)
        for key, document in (await self.entries()).items():
            yield key, document
        while True:
            changed = self._changed
            for key in dict.fromkeys(self._changed_keys[yielded:]):
                yielded = len(self._changed_keys)
                yield key, await self._packer.unpack_document(self._stored[key])
            await changed.wait()


# The bus.


_TENANT = "tenant"


class _TurnQueue(asyncio.Queue[tuple[str, int]]):
    """Pairs of tenant and seq, in turns of tenants."""

    def _init(self, maxsize: int) -> None:
        del maxsize
        self._turns = Turns()
        self._queue: dict[str, deque[int]] = defaultdict(deque)

    def _put(self, item: tuple[str, int]) -> None:
        self._queue[item[0]].append(item[1])

    def _get(self) -> tuple[str, int]:
        tenant = self._turns.choose({name: len(seqs) for name, seqs in self._queue.items()})
        assert tenant is not None  # noqa: S101 - for mypy: it is not called without items
        seq = self._queue[tenant].popleft()
        if not self._queue[tenant]:
            del self._queue[tenant]
        return tenant, seq

    def qsize(self) -> int:
        return sum(map(len, self._queue.values()))


def _turn_of(raw: Raw) -> tuple[str, int]:
    return raw.headers.get(_TENANT, ""), raw.seq


@dataclass(slots=True)
class _Durable:
    """The state of a durable consumer: the waiting seqs, and the number of deliveries of each."""

    spec: registry.DurableSpec
    ready: _TurnQueue = field(default_factory=_TurnQueue)
    deliveries: dict[int, int] = field(default_factory=dict)
    place: int = 0


@dataclass(slots=True)
class _Stream:
    spec: registry.StreamSpec
    records: list[Raw] = field(default_factory=list)
    by_id: dict[str, int] = field(default_factory=dict)
    last_seq: int = 0

    def find(self, seq: int) -> Raw | None:
        index = bisect_right(self.records, seq - 1, key=lambda raw: raw.seq)
        return (
            self.records[index]
            if index < len(self.records) and self.records[index].seq == seq
            else None
        )

    def after(self, seq: int, subjects: Sequence[str]) -> list[Raw]:
        start = bisect_right(self.records, seq, key=lambda raw: raw.seq)
        return [
            raw
            for raw in self.records[start:]
            if not subjects or any(registry.matches(s, raw.subject) for s in subjects)
        ]

    def drop(self, seq: int) -> None:
        self.records = [raw for raw in self.records if raw.seq != seq]


class MemoryBus:
    """A bus and its raw store, within one event loop."""

    def __init__(
        self,
        settings: BusSettings | None = None,
        secrets: Sequence[str] = (),
        limits: BusLimits = BUS_LIMITS,
    ) -> None:
        self._settings, self._limits = settings or BusSettings(), limits
        self._secrets = tuple(secrets)
        self.blobs = MemoryBlobs()
        self._packer = EnvelopeCodec(
            self.blobs.put, self.blobs.get, limits.blob_bytes, self._secrets
        )
        self._streams = {spec.name: _Stream(spec) for spec in registry.STREAMS}
        self._durables: dict[str, _Durable] = {}
        self._buckets: dict[str, MemoryBucket] = {}
        self._listeners: list[tuple[Topic, asyncio.Queue[bytes]]] = []
        self._answerers: list[tuple[Topic, Answerer]] = []
        self._changed = asyncio.Event()

    async def publish(self, event: Event) -> int:
        """Record an event, once for each id, and return its seq."""
        return await self._store_event(registry.subject_of(event), event)

    async def post(self, event: Event) -> Receipt:
        """Record an event; the receipt is already done."""
        receipt_future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            receipt_future.set_result(await self.publish(event))
        except BusUnavailable as error:
            receipt_future.set_exception(error)
            receipt_future.exception()
        return Receipt(receipt_future, lambda: None)

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Record an event that must be the next one of its subject. Raises `AlreadyExists`."""
        subject, data = registry.subject_of(event), await self._packer.pack(event)
        records = self._streams[registry.stream_of(subject).name].after(0, (subject,))
        if (records[-1].seq if records else 0) != after_seq:
            raise AlreadyExists(f"something is recorded under {subject} already")
        return await self.put_raw(subject, data, message_id=event.id)

    async def enqueue(self, topic: Topic, event: Event, *, fresh: bool = False) -> None:
        """Put an event on the work queue."""
        headers = {_TENANT: event.tenant} if delivery.is_shared(topic) else {}
        await self._store_event(
            registry.work_subject(topic), event, headers | ({"fresh": "1"} if fresh else {})
        )

    async def dispatch(self) -> None:
        """Wait until cancelled: the queues of this bus are already in turns of tenants."""
        await asyncio.Event().wait()

    async def _store_event(
        self, subject: str, event: Event, headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        return await self.put_raw(
            subject, await self._packer.pack(event), headers, message_id=event.id
        )

    async def put_raw(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        message_id: str = "",
    ) -> int:
        """Store bytes and return the seq."""
        stream = self._streams[registry.stream_of(subject).name]
        if message_id in stream.by_id:
            return stream.by_id[message_id]
        stream.last_seq += 1
        raw = Raw(stream.last_seq, subject, dict(headers), data, datetime.now(UTC))
        stream.records.append(raw)
        if message_id:
            stream.by_id[message_id] = raw.seq
        for durable in self._durables.values():
            if durable.spec.stream == stream.spec.name and any(
                registry.matches(f, subject) for f in durable.spec.filters
            ):
                durable.ready.put_nowait(_turn_of(raw))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return raw.seq

    async def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the recorded events and end."""
        async with aclosing(self._events(topics, after_seq, follow=False)) as events:
            async for recorded in events:
                yield recorded

    async def first(self, topic: Topic) -> Recorded | None:
        """Return the first event of a topic, or None."""
        async for recorded in self.replay((topic,)):
            return recorded
        return None

    async def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the recorded events, then new ones."""
        async with aclosing(self._events(topics, after_seq, follow=True)) as events:
            async for recorded in events:
                yield recorded

    async def _events(
        self, topics: Sequence[Topic], after_seq: int, *, follow: bool
    ) -> AsyncGenerator[Recorded, None]:
        name, subjects = registry.sources(topics)
        stream = self._streams[name]
        last_seq, end_seq = after_seq, stream.last_seq
        while True:
            changed = self._changed
            for raw in stream.after(last_seq, subjects):
                if not follow and raw.seq > end_seq:
                    return
                last_seq = raw.seq
                try:
                    unpacked = check_subjects(await self._packer.unpack_all(raw.data), raw.subject)
                except InvalidRequest:
                    continue
                for record in batching.to_records(
                    raw.seq,
                    unpacked,
                    {"about": registry.topic_id_of(raw.subject), "time": raw.time.isoformat()},
                ):
                    if isinstance(record, Recorded):
                        yield record
            if not follow:
                return
            await changed.wait()

    def _get_durable(self, spec: registry.DurableSpec) -> _Durable:
        if spec.name not in self._durables:
            new_durable = self._durables[spec.name] = _Durable(spec)
            for raw in self._streams[spec.stream].after(0, spec.filters):
                new_durable.ready.put_nowait(_turn_of(raw))
        return self._durables[spec.name]

    async def consume(
        self,
        durable: str,
        handler: Handler,
        *,
        concurrency: int | Capacity = 1,
        glance: Glance | None = None,
    ) -> None:
        """Deliver messages to the handler until cancelled."""
        capacity = Capacity(concurrency) if isinstance(concurrency, int) else concurrency
        if capacity.count < 1:
            raise InvalidRequest(f"concurrency {capacity.count} is not at least 1")
        consumer = self._get_durable(registry.durable(durable))
        async with asyncio.TaskGroup() as group:
            for number in range(capacity.count):
                group.create_task(
                    self._run_worker(consumer, handler, glance, capacity),
                    name=f"{durable}: worker {number}",
                )

    async def _run_worker(
        self, durable: _Durable, handler: Handler, glance: Glance | None, capacity: Capacity
    ) -> None:
        while True:
            tenant, seq = await durable.ready.get()
            if capacity.turns.locked():
                durable.ready.put_nowait((tenant, seq))  # another consumer may have capacity
                seq = -1
            async with capacity.turns:
                if seq < 0 and not durable.ready.empty():
                    _, seq = durable.ready.get_nowait()
                if seq >= 0:
                    await self._deliver_message(durable, seq, handler, glance)

    async def _deliver_message(
        self, durable: _Durable, seq: int, handler: Handler, glance: Glance | None
    ) -> None:
        loop = asyncio.get_running_loop()
        stream = self._streams[durable.spec.stream]
        raw = stream.find(seq)
        if raw is None:
            return
        durable.deliveries[seq] = deliveries = durable.deliveries.get(seq, 0) + 1
        durable.place += 1
        extra = {
            "about": registry.topic_id_of(raw.subject),
            "deliveries": str(deliveries),
            "place": str(durable.place),
        }
        if deliveries == 1 and "fresh" in raw.headers:
            extra["fresh"] = "1"
        if glance is not None and await self._glance_at(raw, glance, extra):
            self._remove_delivered(durable, stream, seq)
            return
        try:
            verdict = await judge(
                self._limits,
                handler,
                functools.partial(self._unpack, raw, extra),
                deliveries=deliveries,
            )
        except asyncio.CancelledError:
            durable.ready.put_nowait(_turn_of(raw))
            raise
        except Exception:
            loop.call_later(
                self._settings.ack_wait_seconds, durable.ready.put_nowait, _turn_of(raw)
            )
            raise
        match verdict:
            case Nak(delay, _):
                loop.call_later(delay, durable.ready.put_nowait, _turn_of(raw))
            case Bury():
                await self._store_dead_letter(durable, raw, deliveries, verdict)
                self._remove_delivered(durable, stream, seq)
            case Ack():
                self._remove_delivered(durable, stream, seq)

    async def _glance_at(self, raw: Raw, glance: Glance, extra: Mapping[str, str]) -> bool:
        try:
            records = await self._unpack(raw, extra)
        except (Permanent, Temporary):
            return False
        results = [
            isinstance(record, Recorded) and glance(record) for record in records
        ]  # all are glanced at
        for result in results:
            if isinstance(result, asyncio.Future):
                await asyncio.wait({result})
        return all(results)

    async def _unpack(self, raw: Raw, extra: Mapping[str, str]) -> list[Recorded | Permanent]:
        unpacked = await self._packer.unpack_all(raw.data)
        if registry.stream_of(raw.subject) is not registry.WORK:
            unpacked = await forward(unpacked, raw.subject, raw.seq, self._packer, self.put_raw)
        return batching.to_records(raw.seq, unpacked, extra)

    def _remove_delivered(self, durable: _Durable, stream: _Stream, seq: int) -> None:
        durable.deliveries.pop(seq, None)
        if stream.spec.retention == "workqueue":
            stream.drop(seq)

    async def _store_dead_letter(
        self, durable: _Durable, raw: Raw, deliveries: int, verdict: Bury
    ) -> None:
        origin = raw_store.LetterOrigin(
            durable.spec.stream, durable.spec.name, raw.subject, raw.seq, deliveries
        )
        await raw_store.store_dead_letter(self, origin, raw.data, verdict)

    async def signal(self, topic: Topic, data: Mapping[str, Any]) -> None:
        """Send a signal to current listeners."""
        registry.literal(topic)
        content = codec.dump_json(scrub_all(data, self._secrets))
        for listened_topic, queue in self._listeners:
            if listened_topic.covers(topic):
                queue.put_nowait(content)

    async def signals(self, topic: Topic) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield signals until closed."""
        listener = (topic, asyncio.Queue[bytes]())
        self._listeners.append(listener)
        try:
            while True:
                yield codec.load_json(await listener[1].get())
        finally:
            self._listeners.remove(listener)

    async def ask(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> tuple[Mapping[str, Any], bytes]:
        """Send a request to the answerer of a topic. Raises `BusUnavailable`."""
        registry.literal(topic)
        for answered_topic, answerer in self._answerers:
            if answered_topic == topic:
                try:
                    async with asyncio.timeout(seconds):
                        response, content = await answerer(
                            codec.load_json(codec.dump_json(request))
                        )
                except (MoothallError, OSError) as error:  # a timeout is one of these
                    raise BusUnavailable(f"nobody answered on {topic.about}") from error
                return codec.load_json(codec.dump_json(response)), content
        raise BusUnavailable(f"nobody answers on {topic.about}")

    def ask_all(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the responses of all answerers of a topic."""
        registry.literal(topic)
        return self._request_all(topic, request, seconds)

    async def _request_all(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        await asyncio.sleep(0)  # let other tasks run, as with a network
        for answerer in [
            answerer for answered_topic, answerer in self._answerers if answered_topic == topic
        ]:
            with suppress(MoothallError, OSError):
                async with asyncio.timeout(seconds):
                    response, _ = await answerer(codec.load_json(codec.dump_json(request)))
                yield codec.load_json(codec.dump_json(response))

    async def answer(self, topic: Topic, answerer: Answerer, *, shared: bool = False) -> None:  # noqa: ARG002 - there is only one process
        """Answer requests until cancelled."""
        registry.literal(topic)
        self._answerers.append((topic, answerer))
        try:
            await asyncio.Event().wait()
        finally:
            self._answerers.remove((topic, answerer))

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an earlier one."""
        await self.bucket(DOCUMENTS.name).put(key, document)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        return await self.bucket(DOCUMENTS.name).get(key)

    async def keys(self) -> Sequence[str]:
        """Return all keys, sorted."""
        return sorted(await self.bucket(DOCUMENTS.name).entries())

    async def remove(self, key: str) -> None:
        """Remove a document."""
        self.bucket(DOCUMENTS.name).remove(key)

    def bucket(self, name: str) -> MemoryBucket:
        """Return a bucket of the registry."""
        bucket_of(name)
        return self._buckets.setdefault(name, MemoryBucket(name, self._packer))

    async def raw(self, stream: str, after_seq: int = 0) -> AsyncIterator[Raw]:
        """Yield the stored messages of a stream, in order."""
        for raw in self._streams[stream].after(after_seq, ()):
            yield raw

    async def delete_raw(self, stream: str, seq: int) -> None:
        """Remove a message. Raises `NotFound`."""
        if self._streams[stream].find(seq) is None:
            raise NotFound(f"{stream} has no message {seq}")
        self._streams[stream].drop(seq)

    async def purge(self, stream: str, before_seq: int) -> int:
        """Remove all messages before `before_seq`, and return their number."""
        remaining = self._streams[stream].after(before_seq - 1, ())
        removed = len(self._streams[stream].records) - len(remaining)
        self._streams[stream].records = remaining
        return removed

    async def list_ids(self, channel: Channel) -> Sequence[str]:
        """Return the ids of a channel's events in the log."""
        records = self._streams[registry.EVENTS.name].after(0, (registry.subject(channel.all),))
        return sorted({registry.topic_id_of(raw.subject) for raw in records})

    async def forget(self, topic: Topic) -> None:
        """Remove all records of a topic from the log."""
        stream, subject = self._streams[registry.EVENTS.name], registry.literal(topic)
        stream.records = [raw for raw in stream.records if raw.subject != subject]

    async def removed_seqs(self, stream: str) -> frozenset[int]:
        """Return the removed seqs between the existing ones; here all missing ones were removed."""
        existing = [raw.seq for raw in self._streams[stream].records]
        return (
            frozenset(range(existing[0], existing[-1])) - {*existing} if existing else frozenset()
        )

    async def state(self, stream: str) -> StreamState:
        """Return the state of a stream."""
        stored = self._streams[stream]
        first_seq = stored.records[0].seq if stored.records else stored.last_seq + 1
        return StreamState(
            len(stored.records),
            sum(len(raw.data) for raw in stored.records),
            first_seq,
            stored.last_seq,
        )
