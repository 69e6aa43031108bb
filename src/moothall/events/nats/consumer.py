"""Taking messages of a durable consumer: pull, handle, then ack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import nats.errors
from nats.aio.msg import Msg

from moothall.concurrency import Capacity
from moothall.domain.event import Recorded
from moothall.errors import BusUnavailable, Permanent, Temporary
from moothall.events import batching, dead_letters, forwarding, registry
from moothall.events.delivery import Ack, Bury, Nak, judge
from moothall.events.envelope import EnvelopeCodec
from moothall.events.nats import setup
from moothall.events.nats.connection import BEAT, EXPIRES, ConsumerGone, DeliveryPlace, Pull, log
from moothall.events.nats.fast_client import heed_cancel
from moothall.events.nats.layout import FRESH
from moothall.events.nats.stream_store import Stored
from moothall.events.registry import WORK, DurableSpec
from moothall.ports import Glance, Handler
from moothall.telemetry import metrics

_STILL_SECONDS = 2.0  # a process may be this late without anybody's having stopped it


@dataclass(slots=True)
class PullConsumer:
    """One `consume`. Everything pulled and not yet answered is held, and kept alive on the server.

    With a shared capacity, nothing is requested while it is used up, and messages that arrive then
    are returned to the server, for other hosts.
    """

    stored: Stored
    packer: EnvelopeCodec
    spec: DurableSpec
    handler: Handler
    capacity: Capacity
    glance: Glance | None
    waiting: asyncio.Queue[Msg] = field(default_factory=asyncio.Queue)
    held: dict[str, Msg] = field(default_factory=dict)
    leases: dict[str, asyncio.Timeout] = field(default_factory=dict)
    left: dict[str, list[Recorded | Permanent]] = field(default_factory=dict)
    """Of what was glanced at, the events that are left to be handled."""
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    since: tuple[int, int] = (-1, 0)
    """A connection (by how many were lost before it), and the stream's last seq when it stood: how
    often what came after that was delivered, the server has not forgotten by being killed.
    """

    async def run(self) -> None:
        """Run until cancelled; then what was held goes back at once, for others to take."""
        self.capacity.users += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive(), name=f"{self.spec.name}: keep alive")
                for number in range(self.capacity.count):
                    group.create_task(self._work(), name=f"{self.spec.name}: worker {number}")
                group.create_task(self._pull(), name=f"{self.spec.name}: pull")
        finally:
            self.capacity.users -= 1
            self.capacity.release(len(self.held))
            left, self.held = self.held, {}  # what ends after this releases nothing again
            with suppress(nats.errors.Error, OSError):
                for message in left.values():
                    await heed_cancel(message.nak())

    async def _pull(self) -> None:
        capacity = self.capacity.count + self.spec.prefetch
        # Shorter than a message is waited for: what comes again must not go to a reader that stands
        # still.
        expires = min(EXPIRES, max(self.stored.settings.ack_wait_seconds * 0.8, 2.5 * BEAT))
        while True:
            if self.capacity.users > 1:
                await self.capacity.wait_free()
            try:
                await setup.ensure_durable(self.stored.js, self.stored.settings, self.spec)
                if self.spec.stream == WORK.name and (
                    gone := await setup.forget_done(self.stored.js, self.spec)
                ):
                    log.warning(
                        "work that was done was still there, and is removed",
                        durable=self.spec.name,
                        removed=gone,
                    )
                async with Pull.open(
                    self.stored.client, self.spec.stream, self.spec.name, expires
                ) as pull:
                    await self._pull_from(pull, capacity)
            except (ConsumerGone, nats.errors.Error, TimeoutError, OSError) as error:
                if self.stored.client.is_closed:
                    raise BusUnavailable(
                        f"the bus was closed while {self.spec.name} was reading"
                    ) from error
                log.debug("pull begins again", durable=self.spec.name, reason=str(error))
                await asyncio.sleep(0.2)

    async def _pull_from(self, pull: Pull, capacity: int) -> None:
        """Hold arriving messages until other consumers have used up the capacity."""
        while True:
            while len(self.held) >= capacity and self.capacity.users <= 1:
                self.freed.clear()
                await self.freed.wait()
            if self._is_full and pull.arrived.empty():
                return  # which withdraws the open request
            message = await pull.next(self._room(capacity))
            while message is not None:
                if self._is_full:
                    await heed_cancel(message.nak())  # another host may have capacity
                elif not await self._show(message):
                    self._keep(message)
                    self.waiting.put_nowait(message)
                message = pull.at_hand() if len(self.held) < capacity else None

    @property
    def _is_full(self) -> bool:
        """Whether others who share the capacity have used it up."""
        return self.capacity.users > 1 and not self.capacity.free

    def _room(self, capacity: int) -> int:
        """Return how many messages to request: a share of what is free, if others request too."""
        if self.capacity.users <= 1:
            return capacity - len(self.held)
        return max(1, self.capacity.free // self.capacity.users)

    def _keep(self, message: Msg) -> None:
        self.held[message.reply] = message
        self.capacity.hold()

    def _let_go(self, reply: str) -> bool:
        """Stop holding a message; return whether it was held."""
        if self.held.pop(reply, None) is None:
            return False
        self.capacity.release()
        self.freed.set()
        return True

    async def _show(self, message: Msg) -> bool:
        """Show it to who wants to see all in order; whether it is done with that, and answered."""
        if self.glance is None:
            return False
        try:
            found = await self._unpack(message)
        except (Permanent, Temporary):
            return False  # its handling says what becomes of it
        left: list[Recorded | Permanent] = []
        later: list[asyncio.Future[None]] = []
        for each in found:
            seen = not isinstance(each, Permanent) and self.glance(each)
            if isinstance(seen, asyncio.Future):
                later.append(seen)
            elif not seen:
                left.append(each)
        if left:
            self.left[message.reply] = left
            return False
        if later:
            self._hold(message, later)
            return True
        with suppress(nats.errors.Error):
            self.stored.client.put(message.reply)
        return True

    def _hold(self, message: Msg, until: Sequence[asyncio.Future[None]]) -> None:
        """Answer it once all of `until` are done; until then it is in hand."""
        self._keep(message)

        def answer(_: asyncio.Future[None]) -> None:
            if all(future.done() for future in until) and self._let_go(message.reply):
                with suppress(nats.errors.Error):
                    self.stored.client.put(message.reply)

        for future in until:
            future.add_done_callback(answer)

    async def _keep_alive(self) -> None:
        """Tell the server that what is held is worked on; where that came too late, it belongs to
        others already.
        """
        patience = self.stored.settings.ack_wait_seconds
        told = time.monotonic()
        while True:
            await self._note_connection()
            await asyncio.sleep(patience / 3)
            if time.monotonic() - told > max(patience, _STILL_SECONDS) and self.held:
                self._lose()
            if self.stored.client.is_connected:
                told = time.monotonic()
            for message in tuple(self.held.values()):
                with suppress(nats.errors.Error):
                    self.stored.client.put(message.reply, Msg.Ack.Progress)

    async def _note_connection(self) -> None:
        lost = self.stored.client.stats["reconnects"]
        if (
            self.spec.stream != WORK.name
            or self.since[0] == lost
            or self.stored.settings.replicas > 1
        ):
            return
        with suppress(BusUnavailable):
            self.since = (lost, (await self.stored.state(self.spec.stream)).last_seq)

    def _is_fresh(self, message: Msg, place: DeliveryPlace) -> bool:
        """Whether this is work that nobody can have begun."""
        lost, last_seq = self.since
        marked = message.headers is not None and message.headers.keys() >= FRESH.keys()
        return (
            marked
            and place.deliveries == 1
            and place.seq > last_seq
            and self.stored.client.stats["reconnects"] == lost
        )

    def _lose(self) -> None:
        """This process stood still, or was cut off, for so long that its messages were delivered
        anew.
        """
        log.warning(
            "stood still for too long; its messages go to others",
            durable=self.spec.name,
            held=len(self.held),
        )
        self.capacity.release(len(self.held))
        self.held.clear()
        self.left.clear()
        for lease in self.leases.values():
            if not lease.expired():  # else it was lost before, and its handler has not ended yet
                lease.reschedule(0)
        self.freed.set()

    async def _work(self) -> None:
        while True:
            message = await self.waiting.get()
            if message.reply not in self.held:
                continue  # lost while it waited
            async with self.capacity.turns:
                if message.reply in self.held:
                    await self._work_on(message)

    async def _work_on(self, message: Msg) -> None:
        lease = asyncio.timeout(None)
        self.leases[message.reply] = lease
        try:
            async with lease:
                await self._handle(message)
        except TimeoutError:
            if not lease.expired():
                raise
        except Exception:
            # A bug. The message stays unanswered: it comes again when its time is up.
            self._let_go(message.reply)
            raise
        finally:
            del self.leases[message.reply]
        self._let_go(message.reply)

    async def _handle(self, message: Msg) -> None:
        place = DeliveryPlace.of(message.reply)
        if place.deliveries > 1:
            metrics.BUS_REDELIVERIES.add(self.spec.name)
        verdict = await judge(
            self.stored.settings,
            self.handler,
            lambda: self._unpack(message),
            deliveries=place.deliveries,
        )
        if isinstance(verdict, Bury):
            verdict = await self._bury(message, verdict)
        # An answer that doesn't arrive only means that the message comes again.
        with suppress(nats.errors.Error):
            match verdict:
                case Ack():
                    self.stored.client.put(message.reply)
                case Bury():
                    await heed_cancel(message.term())
                case Nak(delay, reason):
                    log.info(
                        "message will come again",
                        durable=self.spec.name,
                        after=delay,
                        reason=reason,
                    )
                    await heed_cancel(message.nak(delay))

    async def _unpack(self, message: Msg) -> list[Recorded | Permanent]:
        """Return its events that are left to be handled."""
        if (left := self.left.pop(message.reply, None)) is not None:
            return left
        place = DeliveryPlace.of(message.reply)
        extra = {
            "about": registry.about(message.subject),
            "deliveries": str(place.deliveries),
            "place": str(place.number),
        }
        if self._is_fresh(message, place):
            extra["fresh"] = "1"
        found = await self.packer.unpack_all(message.data)
        if self.spec.stream != WORK.name:  # work is sent as what was recorded elsewhere
            found = await forwarding.forward(
                found, message.subject, place.seq, self.packer, self.stored.put_raw
            )
        return batching.records_of(place.seq, found, extra)

    async def _bury(self, message: Msg, why: Bury) -> Bury | Nak:
        """Store the dead letter first; only then is the message given up."""
        place = message.metadata
        log.warning(
            "dead letter",
            durable=self.spec.name,
            subject=message.subject,
            code=why.code,
            reason=why.reason,
        )
        origin = dead_letters.LetterOrigin(
            place.stream,
            self.spec.name,
            message.subject,
            place.sequence.stream,
            place.num_delivered,
        )
        try:
            await dead_letters.bury(self.stored, origin, message.data, why)
        except (BusUnavailable, Permanent) as error:
            return Nak(
                self.stored.settings.retry_seconds,
                f"its dead letter could not be stored: {error.message}",
            )
        metrics.BUS_DEAD_LETTERS.add(self.spec.name)
        return why
