"""Facts of a moment in one message: what one subject is told within some milliseconds goes
together, and comes apart again.

A message costs the server, its writer and each of its readers several times what one more event in
it costs. An event is recorded no later for it than somebody waits: whoever waits for a receipt has
what it stands with sent at once.
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

MOST_BYTES = 131_072
MOST_EVENTS = 256
_CLOSE_SECONDS = 1.0

Send = Callable[[str, bytes, str], Awaitable[asyncio.Future[int]]]
"""Send bytes on a subject under an id; what is returned gives the seq once they are durable."""


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
    """Holds back what is posted for at most `seconds`, 0 for one event a message; belongs to one
    event loop. Of all that is not durable yet there are at most `limit` events.

    What is said about one thing is sent in its order, each message when the one before is durable,
    and none after one that the bus did not take. What was held back for `still` seconds too long
    stood in a process that did not run: its work may be another's by now, and it is not sent.
    """

    send: Send
    packer: EnvelopeCodec
    seconds: float
    still: float
    limit: int
    _open: dict[str, _Batch] = field(default_factory=dict)
    """By what the subject is about, its last token: what is said of one task goes in its order,
    whatever the subjects.
    """
    _sending: dict[str, asyncio.Task[MoothallError | None]] = field(default_factory=dict)
    _count: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, subject: str, event: Event) -> Receipt:
        """Add an event to what goes next on `subject`. Raises `InvalidRequest` for what cannot be
        written.
        """
        loop = asyncio.get_running_loop()
        written = self.packer.write(event)
        while self._count >= self.limit:
            self._room.clear()
            await self._room.wait()
        about = registry.about(subject)
        batch = self._open.get(about)
        if batch is not None and (
            batch.subject != subject or batch.size + len(written) > MOST_BYTES
        ):
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._open[about] = _Batch(subject, loop.time() + self.seconds)
            batch.timer = loop.call_at(batch.due, self._close, batch)
        answer: asyncio.Future[int] = loop.create_future()
        batch.events.append(event)
        batch.written.append(written)
        batch.answers.append(answer)
        batch.size += len(written)
        self._count += 1
        opened = batch
        if len(batch.events) >= MOST_EVENTS or not self.seconds:
            self._close(batch)
        return Receipt(answer, lambda: self._close(opened))

    async def settle(self, subject: str) -> None:
        """Return once all that was posted about the same as `subject` is durable or given up: what
        is sent now comes after it.
        """
        about = registry.about(subject)
        if (batch := self._open.get(about)) is not None:
            self._close(batch)
        while (sending := self._sending.get(about)) is not None:
            await asyncio.wait({sending})

    async def close(self) -> None:
        """Send all that is held back, and return once it is durable; where the bus is away,
        soon.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for about in (*self._open, *self._sending):
                    await self.settle(about)

    def _close(self, batch: _Batch) -> None:
        about = registry.about(batch.subject)
        if self._open.get(about) is not batch:
            return
        del self._open[about]
        batch.late = asyncio.get_running_loop().time() - batch.due
        if batch.timer is not None:
            batch.timer.cancel()
        sending = asyncio.get_running_loop().create_task(
            self._send(batch, self._sending.get(about)), name="batch"
        )
        self._sending[about] = sending
        sending.add_done_callback(lambda task: self._finish(about, batch, task))

    def _finish(self, about: str, batch: _Batch, task: asyncio.Task[MoothallError | None]) -> None:
        if self._sending.get(about) is task:
            del self._sending[about]
        if task.cancelled() or task.exception() is not None:
            _tell(
                batch,
                BusUnavailable(
                    f"the bus was closed before it had taken a message on {batch.subject}"
                ),
            )
        self._count -= len(batch.events)
        self._room.set()

    async def _send(
        self, batch: _Batch, before: asyncio.Task[MoothallError | None] | None
    ) -> MoothallError | None:
        try:
            if before is not None:
                await asyncio.wait({before})
                if not before.cancelled() and (error := before.result()) is not None:
                    _tell(batch, error)
                    return error
            seq = await self._record(batch)
        except MoothallError as error:
            _tell(batch, error)
            return error
        for answer in batch.answers:
            if not answer.done():
                answer.set_result(seq)
        return None

    async def _record(self, batch: _Batch) -> int:
        if batch.late > self.still:
            raise BusUnavailable(
                f"this process stood still for {batch.late:.1f} s over a message on {batch.subject}"
            )
        data = encode_batch(batch.written)
        if not self.packer.is_plain(data):
            data = encode_batch([await self.packer.pack(event) for event in batch.events])
        return await (await self.send(batch.subject, data, id_of(batch.events)))


def id_of(events: Sequence[Event]) -> str:
    """Return what the bus knows a message by: the event's id, or one made of all their ids."""
    return (
        events[0].id if len(events) == 1 else digest("batch", *(event.id for event in events))[:32]
    )


def records_of(
    seq: int, found: Sequence[Event | P], extra: Mapping[str, str]
) -> list[Recorded | P]:
    """Return the events of the message `seq` with their places; what is no event stays as it is."""
    last = max((place for place, event in enumerate(found) if isinstance(event, Event)), default=-1)
    return [
        Recorded(seq if place == last else seq - 1, event, extra, seq, place)
        if isinstance(event, Event)
        else event
        for place, event in enumerate(found)
    ]


def _tell(batch: _Batch, error: BaseException) -> None:
    for waiting in batch.answers:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # whoever waits for it hears it; nobody need wait
