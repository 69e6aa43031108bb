"""Batching: events that are posted to one subject within some milliseconds are sent in one message,
and are split again when they are read.

A message costs the server, its writer and each of its readers several times what one more event in
it costs. Nobody waits longer because of it: when a receipt is awaited, its batch is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from moothall.domain.event import Event, Recorded
from moothall.domain.ids import digest
from moothall.errors import BusUnavailable, MoothallError, Permanent
from moothall.events import registry
from moothall.events.codec import encode_batch
from moothall.events.envelope import EnvelopeCodec
from moothall.ports import Receipt

P = TypeVar("P", bound=Permanent)

MAX_BYTES = 131_072
MAX_EVENTS = 256
_CLOSE_SECONDS = 1.0

Send = Callable[[str, bytes, str], Awaitable[asyncio.Future[int]]]
"""Send bytes to a subject under a message id; the returned future gives the seq once they are
durable.
"""


@dataclass(slots=True)
class _Batch:
    subject: str
    due: float
    late: float = 0.0
    events: list[Event] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)
    answers: list[asyncio.Future[int]] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class BatchingWriter:
    """Collects posted events for at most `seconds`; 0 means one event per message. Belongs to one
    event loop. At most `limit` events are not yet durable at any time.

    Messages about one thing are sent in order, each when the one before is durable, and none after
    one that the bus did not accept. A batch that is more than `max_late_seconds` late comes from a
    process that was suspended. Another process may have taken over its work, so it is not sent.
    """

    send: Send
    packer: EnvelopeCodec
    seconds: float
    max_late_seconds: float
    limit: int
    _open: dict[str, _Batch] = field(default_factory=dict)
    """By the last token of the subject, which names what it is about: events of one task keep their
    order across subjects.
    """
    _sending: dict[str, asyncio.Task[MoothallError | None]] = field(default_factory=dict)
    _count: int = 0
    _has_space: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, subject: str, event: Event) -> Receipt:
        """Add an event to the next message on `subject`. Raises `InvalidRequest` if the event
        cannot be encoded.
        """
        loop = asyncio.get_running_loop()
        written = self.packer.write(event)
        while self._count >= self.limit:
            self._has_space.clear()
            await self._has_space.wait()
        topic_id = registry.topic_id_of(subject)
        batch = self._open.get(topic_id)
        if batch is not None and (
            batch.subject != subject or batch.size + len(written) > MAX_BYTES
        ):
            self._close_batch(batch)
            batch = None
        if batch is None:
            batch = self._open[topic_id] = _Batch(subject, loop.time() + self.seconds)
            batch.timer = loop.call_at(batch.due, self._close_batch, batch)
        answer: asyncio.Future[int] = loop.create_future()
        batch.events.append(event)
        batch.written.append(written)
        batch.answers.append(answer)
        batch.size += len(written)
        self._count += 1
        current_batch = batch
        if len(batch.events) >= MAX_EVENTS or not self.seconds:
            self._close_batch(batch)
        return Receipt(answer, lambda: self._close_batch(current_batch))

    async def settle(self, subject: str) -> None:
        """Return once everything posted about the same thing as `subject` is durable or given up,
        so that the next message comes after it.
        """
        topic_id = registry.topic_id_of(subject)
        if (batch := self._open.get(topic_id)) is not None:
            self._close_batch(batch)
        while (sending := self._sending.get(topic_id)) is not None:
            await asyncio.wait({sending})

    async def close(self) -> None:
        """Send everything that is held back and return once it is durable, or soon if the bus is
        away.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for topic_id in (*self._open, *self._sending):
                    await self.settle(topic_id)

    def _close_batch(self, batch: _Batch) -> None:
        topic_id = registry.topic_id_of(batch.subject)
        if self._open.get(topic_id) is not batch:
            return
        del self._open[topic_id]
        batch.late = asyncio.get_running_loop().time() - batch.due
        if batch.timer is not None:
            batch.timer.cancel()
        sending = asyncio.get_running_loop().create_task(
            self._send_batch(batch, self._sending.get(topic_id)), name="batch"
        )
        self._sending[topic_id] = sending
        sending.add_done_callback(lambda task: self._finish_batch(topic_id, batch, task))

    def _finish_batch(
        self, topic_id: str, batch: _Batch, task: asyncio.Task[MoothallError | None]
    ) -> None:
        if self._sending.get(topic_id) is task:
            del self._sending[topic_id]
        if task.cancelled() or task.exception() is not None:
            _fail_batch(
                batch,
                BusUnavailable(
                    f"the bus was closed before it accepted a message on {batch.subject}"
                ),
            )
        self._count -= len(batch.events)
        self._has_space.set()

    async def _send_batch(
        self, batch: _Batch, previous: asyncio.Task[MoothallError | None] | None
    ) -> MoothallError | None:
        try:
            if previous is not None:
                await asyncio.wait({previous})
                if not previous.cancelled() and (error := previous.result()) is not None:
                    _fail_batch(batch, error)
                    return error
            seq = await self._record(batch)
        except MoothallError as error:
            _fail_batch(batch, error)
            return error
        for answer in batch.answers:
            if not answer.done():
                answer.set_result(seq)
        return None

    async def _record(self, batch: _Batch) -> int:
        if batch.late > self.max_late_seconds:
            raise BusUnavailable(
                f"this process was suspended for {batch.late:.1f} s before it sent a message on "
                f"{batch.subject}"
            )
        data = encode_batch(batch.written)
        if not self.packer.is_plain(data):
            data = encode_batch([await self.packer.pack(event) for event in batch.events])
        return await (await self.send(batch.subject, data, message_id(batch.events)))


def message_id(events: Sequence[Event]) -> str:
    """Return the id of a message on the bus: the event's id, or a digest of the ids of all its
    events.
    """
    return (
        events[0].id if len(events) == 1 else digest("batch", *(event.id for event in events))[:32]
    )


def to_records(
    seq: int, events: Sequence[Event | P], extra: Mapping[str, str]
) -> list[Recorded | P]:
    """Return the events of message `seq` with their positions; errors stay as they are."""
    last_index = max(
        (index for index, event in enumerate(events) if isinstance(event, Event)), default=-1
    )
    return [
        Recorded(seq if index == last_index else seq - 1, event, extra, seq, index)
        if isinstance(event, Event)
        else event
        for index, event in enumerate(events)
    ]


def _fail_batch(batch: _Batch, error: BaseException) -> None:
    for waiting in batch.answers:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # mark it as retrieved: nobody has to await it
