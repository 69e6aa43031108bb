"""The bus: every port of `moothall.ports` that carries messages, over NATS JetStream.

All callers that wait for an event share one consumer. Thousands of deliberations may wait, and a
consumer for each would cost more than their work.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats.errors

from moothall import telemetry
from moothall.concurrency import Capacity, Pace, run_in_background
from moothall.config import BusSettings
from moothall.domain.event import Channel, Event, Recorded, Topic
from moothall.domain.text import scrub_all
from moothall.errors import BusUnavailable, InvalidRequest
from moothall.events import batching, codec, delivery, registry
from moothall.events.batching import BatchingWriter
from moothall.events.codec import load_json
from moothall.events.delivery import BUS_LIMITS, BusLimits
from moothall.events.envelope import EnvelopeCodec, check_subjects
from moothall.events.nats import requests, setup
from moothall.events.nats.connection import connection, log, translate_errors
from moothall.events.nats.consumer import PullConsumer, Reader, WorkQueue
from moothall.events.nats.fast_client import FastClient, keep_cancellation
from moothall.events.nats.outbox import Outbox
from moothall.events.nats.requests import ReplyInbox
from moothall.events.nats.setup import KvBucket
from moothall.events.nats.stream_store import FRESH, LAST_SEQ, MESSAGE_ID, Stored
from moothall.events.raw_store import NO_HEADERS, Raw
from moothall.events.registry import DOCUMENTS, DURABLES, STREAMS, bucket_of
from moothall.ports import Answerer, Glance, Handler, Receipt
from moothall.telemetry import metrics

_MAX_RECENT = 128
_MAX_WAITING = 10_000
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class StreamTail:
    """Reads new records under `pattern`, from the first call of `follow` on, and hands each to the
    callers that follow its subject.
    """

    stored: Stored
    stream: str
    pattern: str
    _waiting: dict[str, set[asyncio.Queue[Raw | None]]] = field(default_factory=dict)
    _requested: asyncio.Event = field(default_factory=asyncio.Event)
    _started: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: str = ""
    _recent: deque[Raw] = field(default_factory=deque)
    _recent_since: int = sys.maxsize
    """All records after this seq are in `_recent` or have not arrived yet."""

    async def run(self) -> None:
        """Read until cancelled."""
        await self._requested.wait()
        try:
            start = self._recent_since = (await self.stored.state(self.stream)).last_seq
            self._started.set()
            async with aclosing(
                self.stored.read(self.stream, (self.pattern,), start, None)
            ) as records:
                async for raw in records:
                    self._recent.append(raw)
                    if len(self._recent) > _MAX_RECENT:
                        self._recent_since = self._recent.popleft().seq
                    for queue in self._waiting.get(raw.subject, ()):
                        queue.put_nowait(raw)
        except BusUnavailable as error:
            self._closed = error.message
        finally:
            self._closed = self._closed or "the bus was closed"
            self._started.set()
            for queues in self._waiting.values():
                for queue in queues:
                    queue.put_nowait(None)

    async def _read_stored(self, subject: str, after_seq: int) -> list[Raw]:
        if after_seq >= self._recent_since:
            return [raw for raw in self._recent if raw.subject == subject and raw.seq > after_seq]
        return await self.stored.read_now(self.stream, (subject,), after_seq)

    async def follow(self, subject: str, after_seq: int) -> AsyncGenerator[Raw, None]:
        """Yield the records of a literal subject, then new ones. Raises `BusUnavailable` once
        closed.
        """
        self._requested.set()
        await self._started.wait()
        queue: asyncio.Queue[Raw | None] = asyncio.Queue()
        self._waiting.setdefault(subject, set()).add(queue)
        try:
            # Read only now: records stored from here on arrive through the queue.
            for raw in await self._read_stored(subject, after_seq):
                yield raw
                after_seq = raw.seq
            while not self._closed:
                raw_or_end = await queue.get()
                if raw_or_end is not None and raw_or_end.seq > after_seq:
                    yield raw_or_end
                    after_seq = raw_or_end.seq
            raise BusUnavailable(self._closed)
        finally:
            self._waiting[subject].discard(queue)
            if not self._waiting[subject]:
                del self._waiting[subject]


class JetStreamBus:
    """Implements `ports.Bus`. Created by `open_bus`."""

    def __init__(
        self, stored: Stored, settings: BusSettings, secrets: Sequence[str], tail: StreamTail
    ) -> None:
        self._client = stored.client
        self._secrets = tuple(secrets)
        self._replicas = settings.replicas
        self._stored = stored
        self._tail = tail
        self._work = WorkQueue(stored)
        self._packer = EnvelopeCodec(
            self._stored.put, self._stored.get, stored.limits.blob_bytes, self._secrets
        )
        documents = self.bucket(DOCUMENTS.name)
        self.put, self.get, self.keys, self.remove = (
            documents.put,
            documents.get,
            documents.keys,
            documents.remove,
        )
        # Access to the raw records below the events: see `RawStore`.
        self.raw, self.state, self.removed_seqs, self.purge = (
            stored.raw,
            stored.state,
            stored.removed_seqs,
            stored.purge,
        )
        self.put_raw, self.delete_raw, self.subjects, self.drop = (
            stored.put_raw,
            stored.delete_raw,
            stored.subjects,
            stored.drop,
        )
        self._batching = BatchingWriter(
            self._send_batch,
            self._packer,
            stored.limits.batch_seconds,
            settings.ack_wait_seconds / 2,
            stored.limits.in_flight,
        )

    async def publish(self, event: Event) -> int:
        """Return the event's seq once it is stored by the bus; a repeat returns the seq of the
        first.

        Retried over a restart of the bus. Raises `BusUnavailable`, `InvalidRequest`.
        """
        return await self._put(registry.subject_of(event), event, "log")

    async def post(self, event: Event) -> Receipt:
        """Send within `batch_seconds`, together with other events on the subject, without
        waiting for the ack. Awaiting the receipt sends at once; it gives the seq or raises what
        `publish` raises.
        """
        subject = registry.subject_of(event)
        # The span covers only the sending: the caller does not wait for the ack.
        with _publish_span(subject, event):
            return await self._batching.post(subject, event)

    async def _send_batch(self, subject: str, data: bytes, message_id: str) -> asyncio.Future[int]:
        return await self._stored.outbox.send(subject, data, {MESSAGE_ID: message_id}, "log")

    async def flush(self) -> None:
        """Send all posted events that are still waiting for their batch."""
        await self._batching.close()

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Publish the next event of a topic after `after_seq`, or its first for 0. Raises
        `AlreadyExists` if there is another event, also for a repeat, and what `publish` raises.
        """
        return await self._put(registry.subject_of(event), event, "log", {LAST_SEQ: str(after_seq)})

    async def enqueue(self, topic: Topic, event: Event, *, fresh: bool = False) -> None:
        """Put an event on the work queue; returns once it is durable. Raises `BusUnavailable`,
        `InvalidRequest`.
        """
        address, headers = registry.work_subject(topic), FRESH if fresh else NO_HEADERS
        if not delivery.is_shared(topic):
            await self._put(address, event, "work", headers)
            return
        role = registry.topic_id_of(address)
        if not await self._work.enter(role):
            address = registry.work_subject(delivery.waiting_topic(role, event.tenant))
            await self._put(address, event, "work")
            return
        try:
            await self._put(address, event, "work", headers)
        finally:
            self._work.leave(role)

    async def dispatch(self) -> None:
        """Give each tenant its turn in the work queue until cancelled; see `moothall.ports.Bus`."""
        await self._work.dispatch()

    async def _put(
        self, subject: str, event: Event, label: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        with _publish_span(subject, event):
            return await (await self._send_event(subject, event, label, headers))

    async def _send_event(
        self, subject: str, event: Event, label: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> asyncio.Future[int]:
        for token in subject.split("."):
            registry.check_token(token, "subject")
        await self._batching.settle(subject)
        data = await self._packer.pack(event)
        return await self._stored.outbox.send(
            subject, data, {MESSAGE_ID: event.id, **headers}, label
        )

    async def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the current records of `topics` (all of one stream; none: the whole log), then end.
        Records that are not events are skipped.
        """
        stream, subjects = registry.sources(topics)
        if self._reads_directly(subjects, few_remain=after_seq > 0):
            pace = Pace()
            for raw in await self._stored.read_now(stream, subjects, after_seq):
                for recorded in await self._decode(stream, raw):
                    yield recorded
                    await pace.step()
            return
        until = (await self._stored.state(stream)).last_seq
        async with aclosing(self._events(stream, subjects, after_seq, until)) as events:
            async for recorded in events:
                yield recorded

    async def first(self, topic: Topic) -> Recorded | None:
        """Return the first event of a topic, or None."""
        stream, subjects = registry.sources((topic,))
        if self._reads_directly(subjects, few_remain=True):
            for raw in await self._stored.read_now(stream, subjects, limit=1):
                for recorded in await self._decode(stream, raw):
                    return recorded
        async with aclosing(self.replay((topic,))) as events:
            async for recorded in events:
                return recorded
        return None

    async def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield recorded events, then new ones, until closed. Survives restarts of the bus."""
        stream, subjects = registry.sources(topics)
        if (
            len(topics) == 1
            and topics[0].channel is Channel.RESPONSES
            and self._reads_directly(subjects)
        ):
            async with aclosing(self._tail.follow(subjects[0], after_seq)) as records:
                async for raw in records:
                    for recorded in await self._decode(stream, raw):
                        yield recorded
        async with aclosing(self._events(stream, subjects, after_seq, None)) as events:
            async for recorded in events:
                yield recorded

    async def _events(
        self, stream: str, subjects: Sequence[str], after_seq: int, until: int | None
    ) -> AsyncGenerator[Recorded, None]:
        pace = Pace()
        async with aclosing(self._stored.read(stream, subjects, after_seq, until)) as records:
            async for raw in records:
                for recorded in await self._decode(stream, raw):
                    yield recorded
                    await pace.step()

    async def _decode(self, stream: str, raw: Raw) -> list[Recorded]:
        try:
            events = check_subjects(await self._packer.unpack_all(raw.data), raw.subject)
        except InvalidRequest as error:
            events = [error]
        records = batching.to_records(
            raw.seq,
            events,
            {"about": registry.topic_id_of(raw.subject), "time": raw.time.isoformat()},
        )
        for record in records:
            if not isinstance(record, Recorded):
                # A durable consumer makes it a dead letter and logs its own warning.
                write_log = log.debug if registry.is_consumed(raw.subject) else log.warning
                write_log(
                    "record skipped",
                    stream=stream,
                    seq=raw.seq,
                    subject=raw.subject,
                    reason=record.message,
                )
        return [record for record in records if isinstance(record, Recorded)]

    def _reads_directly(self, subjects: Sequence[str], *, few_remain: bool = False) -> bool:
        """Return whether to read directly from the stream: for subjects without patterns, or for
        one pattern if few records remain. Not with replicas: a lagging one might answer.
        """
        has_few_records = few_remain and len(subjects) == 1
        literal = not any("*" in subject or ">" in subject for subject in subjects)
        return (
            (has_few_records or literal)
            and self._replicas == 1
            and len({subject.count(".") for subject in subjects}) == 1
        )

    async def consume(
        self,
        durable: str,
        handler: Handler,
        *,
        concurrency: int | Capacity = 1,
        glance: Glance | None = None,
    ) -> None:
        """Run until cancelled; see `moothall.ports.Bus`.

        Raises `InvalidRequest` for a durable that isn't registered, `BusUnavailable` when the bus
        is closed.
        """
        capacity = Capacity(concurrency) if isinstance(concurrency, int) else concurrency
        if capacity.count < 1:
            raise InvalidRequest(f"concurrency {capacity.count} is not at least 1")
        await PullConsumer(
            self._stored,
            self._packer,
            registry.durable(durable),
            Reader(handler, glance),
            capacity,
        ).run()

    async def signal(self, topic: Topic, data: Mapping[str, Any]) -> None:
        """Send to the current listeners."""
        subject = registry.literal(topic)
        with translate_errors(f"send a signal on {subject}"):
            self._client.publish_nowait(subject, codec.dump_json(scrub_all(data, self._secrets)))
            await self._stored.acks.flush(self._client)

    async def signals(self, topic: Topic) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield signals until closed. Listening begins with the first step; messages that are not
        JSON are skipped.
        """
        async with aclosing(
            listen(self._client, self._stored.acks, registry.subject(topic))
        ) as messages:
            async for message in messages:
                yield message

    async def ask(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> tuple[Mapping[str, Any], bytes]:
        """Send a request on a topic and return the answer. Raises `BusUnavailable` if nobody
        answers in time.
        """
        return await requests.ask(
            self._client, self._stored.acks, registry.literal(topic), request, seconds
        )

    def ask_all(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield all answers to a request on a topic, until none has arrived for `seconds`. Raises
        `BusUnavailable`.
        """
        return requests.ask_all(
            self._client, self._stored.acks, registry.literal(topic), request, seconds
        )

    async def answer(self, topic: Topic, answerer: Answerer, *, shared: bool = False) -> None:
        """Answer requests until cancelled. `shared`: only one of several processes gets each."""
        subject = registry.literal(topic)
        await requests.answer(
            self._client, self._stored.acks, subject, answerer, subject if shared else ""
        )

    def bucket(self, name: str) -> KvBucket:
        """Return a bucket of the registry. Raises `InvalidRequest` for another name."""
        return KvBucket(self._stored, self._packer, bucket_of(name))

    async def list_ids(self, channel: Channel) -> Sequence[str]:
        """Return the ids of all subjects of a channel of the log."""
        return [
            registry.topic_id_of(subject)
            for subject in await self.subjects(registry.EVENTS.name, registry.subject(channel.all))
        ]

    async def forget(self, topic: Topic) -> None:
        """Remove all records of one thing from the log."""
        await self.drop(registry.EVENTS.name, registry.literal(topic))

    async def measure(self) -> None:
        """Update the metrics of consumers and streams."""
        await measure(self._stored, self._work)


def _publish_span(subject: str, event: Event) -> telemetry.Span:
    if not event.traceparent:
        # summaries of many calls on the AUDIT stream belong to no trace and start none
        return telemetry.Span()
    attributes = {
        "messaging.system": "nats",
        "messaging.message.id": event.id,
        "messaging.destination.name": subject,
    }
    return telemetry.span("publish", {**attributes, "moothall.event": event.type}, kind="producer")


@asynccontextmanager
async def open_bus(
    settings: BusSettings,
    url: str,
    *,
    secrets: Sequence[str] = (),
    alone: bool = False,
    limits: BusLimits = BUS_LIMITS,
) -> AsyncIterator[JetStreamBus]:
    """Connect, set up the bus as in the registry, and close at the end.

    `secrets` are the operator's values that no message may contain. `alone`: the server was just
    started for this process only, so the holders of work from its last run are gone, and that work
    is redelivered at once. Raises `BusUnavailable` if nobody answers within `bus.wait_seconds`, and
    `ConfigurationError` if the server refuses the connection or JetStream is off.
    """
    if settings.wait_seconds:
        await _wait_until_ready(settings, url)
    acks = ReplyInbox()
    outboxes: list[Outbox] = []

    def connection_lost() -> None:
        acks.connection_lost()
        for outbox in outboxes:
            outbox.connection_lost()

    async with connection(settings, url, on_lost=connection_lost) as client, acks.listening(client):
        js = client.jetstream()
        await setup.ensure(js, settings, alone=alone)
        outbox = Outbox(client, acks, limits.publish_seconds, limits.in_flight)
        outboxes.append(outbox)
        stored = Stored(client, js, settings, limits, acks, outbox)
        tail = StreamTail(stored, registry.EVENTS.name, registry.subject(Channel.RESPONSES.all))
        async with (
            run_in_background(outbox.run(), "outbox"),
            run_in_background(tail.run(), "decisions"),
        ):
            bus = JetStreamBus(stored, settings, secrets, tail)
            try:
                yield bus
            finally:
                await bus.flush()


async def _wait_until_ready(settings: BusSettings, url: str) -> None:
    """Wait until a bus that is still starting is available, and set it up."""
    deadline = time.monotonic() + settings.wait_seconds
    while True:
        try:
            async with connection(settings, url, on_lost=lambda: None) as client:
                return await setup.ensure(client.jetstream(), settings)
        except BusUnavailable as error:
            if time.monotonic() > deadline:
                raise
            log.info("the bus is not ready yet; trying again", reason=error.message)
            await asyncio.sleep(_RETRY_SECONDS)


async def measure(stored: Stored, work: WorkQueue) -> None:
    """Update the metrics of the bus. They stay unchanged if the bus does not answer."""
    try:
        waiting = {
            registry.host_durable(role): tenants.total()
            for role, tenants in (await work.waiting()).items()
        }
        for spec in STREAMS:
            info = await keep_cancellation(stored.js.stream_info(spec.name))
            metrics.BUS_STORED_BYTES.set(info.state.bytes, spec.name)
            if not info.state.consumer_count:
                continue
            for consumer in await keep_cancellation(stored.js.consumers_info(spec.name)):
                if consumer.name in DURABLES:  # a reader's temporary consumer gets no label
                    lag = (consumer.num_pending or 0) + waiting.get(consumer.name, 0)
                    metrics.BUS_LAG.set(lag, consumer.name)
                    metrics.BUS_UNACKED.set(consumer.num_ack_pending or 0, consumer.name)
    except (nats.errors.Error, TimeoutError, OSError):
        return


async def listen(
    client: FastClient, acks: ReplyInbox, subject: str
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield signals until closed; messages that are not JSON objects are skipped. Raises
    `BusUnavailable` once closed.
    """
    async with aclosing(
        requests.messages(client, subject, acks=acks, limit=_MAX_WAITING)
    ) as arriving:
        async for message in arriving:
            try:
                data = load_json(message.data)
            except InvalidRequest as error:
                log.warning("signal skipped", subject=message.subject, reason=error.message)
                continue
            if isinstance(data, Mapping):
                yield data
