"""JetStream streams as raw records: reliable writes with their headers, and ordered reads that
survive a restart of the server; and the object store of large values.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from moothall.config import BusSettings
from moothall.errors import BusUnavailable, InvalidRequest, NotFound
from moothall.events import codec
from moothall.events.delivery import BusLimits
from moothall.events.nats.connection import ConsumerGone, Pull, reason, translate_errors
from moothall.events.nats.fast_client import FastClient, keep_cancellation
from moothall.events.nats.outbox import ATTEMPT_SECONDS, Outbox, refusal
from moothall.events.nats.requests import ReplyInbox
from moothall.events.raw_store import NO_HEADERS, Raw, StreamState
from moothall.events.registry import covers

T = TypeVar("T")

MESSAGE_ID = "Nats-Msg-Id"
LAST_SEQ = "Nats-Expected-Last-Subject-Sequence"
FIRST: Mapping[str, str] = {LAST_SEQ: "0"}
"""Headers of a write that must be the first on its subject."""
FRESH: Mapping[str, str] = {"Moothall-Fresh": "1"}
"""Marks work that no consumer can have begun yet. It is not part of the event, so a dead letter
that is sent again lacks it.
"""

BLOBS = "blobs"
BLOBS_STREAM = f"OBJ_{BLOBS}"
BLOB_CHUNKS = f"$O.{BLOBS}.C."
BLOB_ENTRIES = f"$O.{BLOBS}.M."
BLOB_SECONDS = 30.0
READ_BATCH = 256
_DRAINED_SECONDS = 0.25
"""Seconds without a record after which a finite reader asks whether all have arrived."""


def _without_overlaps(subjects: Sequence[str]) -> list[str]:
    """Drop subjects that another subject covers: a consumer accepts no overlapping filters."""
    unique = list(dict.fromkeys(subjects))
    return [s for s in unique if not any(o != s and covers(o, s) for o in unique)]


@dataclass(slots=True)
class Stored:
    """Reads and writes raw records over one connection. Implements `RawStore`, and `Put` and `Get`
    of `blobs`.
    """

    client: FastClient
    js: JetStreamContext
    settings: BusSettings
    limits: BusLimits
    acks: ReplyInbox
    outbox: Outbox

    async def retry(
        self, action: str, act: Callable[[], Awaitable[T]], seconds: float = ATTEMPT_SECONDS
    ) -> T:
        """Call `act` repeatedly, over a restart of the bus, for at most `publish_seconds`. It must
        be repeatable; `seconds` limits one attempt.

        Raises `BusUnavailable` after that, and `Permanent` for what the server refuses for good.
        """
        deadline = time.monotonic() + self.limits.publish_seconds
        delay = 0.02
        while True:
            try:
                async with asyncio.timeout(min(seconds, max(deadline - time.monotonic(), 0.1))):
                    return await keep_cancellation(act())
            except NotFoundError:
                raise  # each caller handles it in its own way
            except nats.errors.MaxPayloadError as error:
                raise InvalidRequest(
                    f"the bus did not {action}: the message is over its limit of "
                    f"{self.client.max_payload}"
                ) from error
            except (nats.errors.Error, TimeoutError, OSError) as error:
                refused = refusal(error, action) if isinstance(error, APIError) else None
                if refused is not None:
                    raise refused from error
                if self.client.is_closed or time.monotonic() + delay > deadline:
                    raise BusUnavailable(f"the bus did not {action}: {reason(error)}") from error
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def put_raw(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        message_id: str = "",
    ) -> int:
        """Store durably and return the seq; a repeated `message_id` returns the seq of the
        first.
        """
        all_headers = {MESSAGE_ID: message_id, **headers} if message_id else headers
        return await (await self.outbox.send(subject, data, all_headers))

    async def read(
        self, stream: str, subjects: Sequence[str], after_seq: int, until: int | None
    ) -> AsyncGenerator[Raw, None]:
        """Yield records in order, each once; up to the seq `until`, or without end for None.

        After a gap, a lost consumer or a server restart, reading resumes behind the last record
        that was yielded.
        """
        last = after_seq
        failing_since = 0.0
        while until is None or last < until:
            try:
                async with aclosing(
                    self._read_from_consumer(stream, subjects, last, finite=until is not None)
                ) as records:
                    async for raw, remaining in records:
                        if until is not None and raw.seq > until:
                            return
                        yield raw
                        last, failing_since = raw.seq, 0.0
                        if until is not None and remaining == 0:
                            return
            except (ConsumerGone, nats.errors.Error, TimeoutError, OSError) as error:
                failing_since = failing_since or time.monotonic()
                patience = self.limits.publish_seconds
                if self.client.is_closed or (
                    until is not None and time.monotonic() - failing_since > patience
                ):
                    raise BusUnavailable(
                        f"the bus stopped reading {stream}: {reason(error)}"
                    ) from error
                await asyncio.sleep(0.1)
            else:
                if until is not None:
                    return

    async def _read_from_consumer(
        self, stream: str, subjects: Sequence[str], after_seq: int, *, finite: bool
    ) -> AsyncGenerator[tuple[Raw, int], None]:
        """Yield (record, number of remaining records) from a new consumer. Ends at a gap, and when
        finite at the end.
        """
        name = self.client.new_inbox().rpartition(".")[2]
        info = await keep_cancellation(
            self.js.add_consumer(
                stream,
                config=api.ConsumerConfig(
                    name=name,
                    deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=after_seq + 1,
                    ack_policy=api.AckPolicy.NONE,
                    filter_subjects=_without_overlaps(subjects) or None,
                    mem_storage=True,
                    num_replicas=1,
                    inactive_threshold=60.0,
                ),
            )
        )
        try:
            if finite and not info.num_pending:
                return
            expected = 1
            async with Pull.open(self.client, stream, name) as pull:
                while True:
                    message = await pull.next(READ_BATCH, _DRAINED_SECONDS if finite else inf)
                    if message is None:
                        if finite and await self._is_drained(stream, name, expected):
                            return
                        continue
                    place = message.metadata
                    if place.sequence.consumer != expected:
                        raise ConsumerGone(f"{stream}: a message was lost in delivery")
                    expected += 1
                    yield _parse_delivered(message), place.num_pending
        finally:
            if self.client.is_connected:
                self._delete_consumer(stream, name)

    async def _is_drained(self, stream: str, name: str, expected: int) -> bool:
        """Return whether all records have arrived. A record that was delivered but has not arrived
        is still pending.
        """
        info = await keep_cancellation(self.js.consumer_info(stream, name))
        return (
            not info.num_pending
            and info.delivered is not None
            and info.delivered.consumer_seq < expected
        )

    async def read_now(
        self, stream: str, subjects: Sequence[str], after_seq: int = 0, limit: int = 0
    ) -> list[Raw]:
        """Return what is stored now under literal subjects with the same number of tokens, or under
        one pattern, in order; at most `limit` if given.

        This reads directly from the stream, without making and deleting a consumer, which suits
        reading a single deliberation.
        """
        literals = set(subjects)
        pattern = ".".join(
            tokens[0] if len(set(tokens)) == 1 else "*"
            for tokens in zip(*(s.split(".") for s in literals), strict=True)
        )
        records: list[Raw] = []
        exact = len(literals) == 1  # the server then returns nothing else
        while True:
            request = {"seq": after_seq + 1, "batch": limit or READ_BATCH, "next_by_subj": pattern}
            answers = await self.retry(
                f"look into {stream}",
                functools.partial(self._request_records, stream, codec.dump_json(request)),
            )
            page = [_parse_direct(message) for message in answers[:-1]]
            records += [raw for raw in page if exact or raw.subject in literals]
            last_headers = answers[-1].headers or {}
            if (
                not page
                or last_headers.get("Status") != "204"
                or last_headers.get("Nats-Num-Pending") == "0"
                or (limit and len(records) >= limit)
            ):
                return records
            after_seq = page[-1].seq

    async def _request_records(self, stream: str, request: bytes) -> list[Msg]:
        subject = f"$JS.API.DIRECT.GET.{stream}"
        answers = await self.acks.ask(
            self.client,
            subject,
            request,
            is_last=lambda message: "Status" in (message.headers or {}),
        )
        status = (answers[-1].headers or {}).get("Status")
        if status not in {"204", "404"}:
            raise nats.errors.Error(
                f"{stream} cannot be read: {status} "
                f"{(answers[-1].headers or {}).get('Description', '')}"
            )
        return answers

    def _delete_consumer(self, stream: str, name: str) -> None:
        """Delete a reader's consumer; if that fails, the server removes it after a minute."""
        self.client.publish_nowait(f"$JS.API.CONSUMER.DELETE.{stream}.{name}")

    async def state(self, stream: str) -> StreamState:
        """Return what a stream holds."""
        state = (await self.retry(f"describe {stream}", lambda: self.js.stream_info(stream))).state
        return StreamState(
            messages=state.messages,
            bytes=state.bytes,
            first_seq=state.first_seq,
            last_seq=state.last_seq,
        )

    async def removed_seqs(self, stream: str) -> frozenset[int]:
        """Return the seqs that were removed on purpose between others. nats-server lists these, but
        not records that it lost.
        """
        request = b'{"deleted_details": true}'
        answer = await self.retry(
            f"describe {stream}",
            lambda: self.client.request(f"$JS.API.STREAM.INFO.{stream}", request, 10.0),
        )
        return frozenset(json.loads(answer.data)["state"].get("deleted") or ())

    async def raw(
        self, stream: str, after_seq: int = 0, subjects: Sequence[str] = ()
    ) -> AsyncGenerator[Raw, None]:
        """Yield what is stored now, in order; only under `subjects` if given."""
        until = (await self.state(stream)).last_seq
        async for record in self.read(stream, subjects, after_seq, until):
            yield record

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """Return the subjects under `pattern` that have records, sorted."""
        info = await self.retry(
            f"list {stream}", lambda: self.js.stream_info(stream, subjects_filter=pattern)
        )
        return sorted(info.state.subjects or ())

    async def drop(self, stream: str, subject: str) -> None:
        """Remove all records of one subject."""
        with translate_errors(f"drop {subject}"):
            await keep_cancellation(self.js.purge_stream(stream, subject=subject))

    async def delete_raw(self, stream: str, seq: int, *, erase: bool = True) -> None:
        """Remove one message. Raises `NotFound`.

        erase: also overwrite it, for which the server writes a whole file of messages again.
        """
        subject = f"$JS.API.STREAM.MSG.DELETE.{stream}"
        request = codec.dump_json({"seq": seq, "no_erase": not erase})
        with translate_errors(f"delete {stream} {seq}"):
            answer = await keep_cancellation(self.client.request(subject, request, 10.0))
        if "error" in json.loads(answer.data):
            raise NotFound(f"{stream} has no message {seq}")

    async def purge(self, stream: str, before_seq: int) -> int:
        """Remove all messages with a seq below `before_seq` and return their number."""
        earlier = await self.state(stream)
        if before_seq <= earlier.first_seq or not earlier.messages:
            return 0
        with translate_errors(f"prune {stream}"):
            await keep_cancellation(self.js.purge_stream(stream, seq=before_seq))
        later = await self.state(stream)
        return earlier.messages + (later.last_seq - earlier.last_seq) - later.messages

    async def put(self, sha256: str, content: bytes) -> None:
        """Store a blob; repeating it changes nothing."""
        store = ObjectStore(BLOBS, BLOBS_STREAM, self.js)

        async def attempt() -> None:
            try:
                await store.get_info(sha256)
            except NotFoundError:
                await store.put(sha256, content)

        await self.retry("store a large value", attempt, BLOB_SECONDS)

    async def get(self, sha256: str) -> bytes:
        """Return a blob's bytes. Raises `NotFound`.

        The client's own `get` is not used, since it waits for ever if the server goes away in the
        middle.
        """
        store = ObjectStore(BLOBS, BLOBS_STREAM, self.js)
        for _ in range(3):  # another process that stores the same value again replaces its chunks
            try:
                info = await self.retry("find a large value", lambda: store.get_info(sha256))
            except NotFoundError as error:
                raise NotFound(f"the stored value {sha256} was pruned") from error
            chunks = self.read(
                BLOBS_STREAM,
                (f"{BLOB_CHUNKS}{info.nuid}",),
                0,
                (await self.state(BLOBS_STREAM)).last_seq,
            )
            content = b"".join([chunk.data async for chunk in chunks])
            if len(content) == (info.size or 0):
                return content
        raise BusUnavailable(f"the stored value {sha256} is incomplete")


def _parse_delivered(message: Msg) -> Raw:
    place = message.metadata
    return Raw(
        place.sequence.stream, message.subject, message.headers or {}, message.data, place.timestamp
    )


def _parse_direct(message: Msg) -> Raw:
    headers = message.headers or {}
    time = datetime.fromisoformat(headers["Nats-Time-Stamp"])
    return Raw(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers, message.data, time)
