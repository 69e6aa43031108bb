"""Reads the messages of a durable consumer: pull, handle, then ack. Moves waiting work into the
queues of roles, in turns of tenants: see `moothall.events.delivery`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from moothall.concurrency import Capacity
from moothall.domain.event import Channel, Recorded
from moothall.errors import BusUnavailable, MoothallError, NotFound, Permanent, Temporary
from moothall.events import batching, raw_store, registry
from moothall.events.delivery import (
    MAX_QUEUED,
    Ack,
    Bury,
    Nak,
    Turns,
    judge,
    parse_waiting,
    queue_limit,
    waiting_topic,
)
from moothall.events.envelope import EnvelopeCodec, forward
from moothall.events.nats import setup
from moothall.events.nats.connection import (
    EXPIRES,
    MIN_EXPIRES,
    ConsumerGone,
    DeliveryPlace,
    Pull,
    log,
)
from moothall.events.nats.fast_client import keep_cancellation
from moothall.events.nats.stream_store import FRESH, MESSAGE_ID, Stored
from moothall.events.registry import WORK, DurableSpec
from moothall.ports import Glance, Handler
from moothall.telemetry import metrics

# Reads the messages of a durable consumer: pull, handle, then ack.


_RECEIVING_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 2.0  # a process may be this late without having been suspended


@dataclass(frozen=True, slots=True)
class Reader:
    """The callbacks for events: first `glance`, then `handle`."""

    handle: Handler
    glance: Glance | None = None


@dataclass(slots=True)
class PullConsumer:
    """One call of `consume`. Every message that was pulled and not yet answered is held, and the
    server gets regular progress notices for it.

    With a shared capacity, nothing is requested while it is used up, and messages that arrive then
    are returned to the server, for other hosts.
    """

    stored: Stored
    packer: EnvelopeCodec
    spec: DurableSpec
    reader: Reader
    capacity: Capacity
    waiting: asyncio.Queue[Msg] = field(default_factory=asyncio.Queue)
    held_messages: dict[str, Msg] = field(default_factory=dict)
    leases: dict[str, asyncio.Timeout] = field(default_factory=dict)
    unhandled: dict[str, list[Recorded | Permanent]] = field(default_factory=dict)
    """The events of glanced-at messages that remain to be handled."""
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    received_at: float = -math.inf
    """When the last message arrived (monotonic seconds)."""
    baseline: tuple[int, int] = (-1, 0)
    """The number of the connection (connections lost before it), and the stream's last seq when it
    was opened. A server that was killed before then may have forgotten the delivery count of older
    messages, but not of newer ones.
    """

    async def run(self) -> None:
        """Run until cancelled; then the held messages are returned at once, for others."""
        self.capacity.users += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive(), name=f"{self.spec.name}: keep alive")
                for number in range(self.capacity.count):
                    group.create_task(self._work(), name=f"{self.spec.name}: worker {number}")
                group.create_task(self._pull(), name=f"{self.spec.name}: pull")
        finally:
            self.capacity.users -= 1
            self.capacity.release(len(self.held_messages))
            # Handlers that end later must not release again.
            messages, self.held_messages = self.held_messages, {}
            with suppress(nats.errors.Error, OSError):
                for message in messages.values():
                    await keep_cancellation(message.nak())

    async def _pull(self) -> None:
        capacity = self.capacity.count + self.spec.prefetch
        # Shorter than the ack wait: a redelivered message must not go to a suspended reader.
        expires = min(EXPIRES, max(self.stored.settings.ack_wait_seconds * 0.8, MIN_EXPIRES))
        while True:
            if self.capacity.users > 1:
                await self.capacity.wait_free()
            try:
                await setup.ensure_durable(self.stored.js, self.stored.settings, self.spec)
                if self.spec.stream == WORK.name and (
                    removed := await setup.remove_done(self.stored.js, self.spec)
                ):
                    log.warning(
                        "removed finished work that the server still stored",
                        durable=self.spec.name,
                        removed=removed,
                    )
                async with Pull.open(
                    self.stored.client, self.spec.stream, self.spec.name, expires
                ) as pull:
                    with self.capacity.calls_when_full(pull.wake):
                        await self._pull_from(pull, capacity)
            except (ConsumerGone, nats.errors.Error, TimeoutError, OSError) as error:
                if self.stored.client.is_closed:
                    raise BusUnavailable(
                        f"the bus was closed while {self.spec.name} was reading"
                    ) from error
                log.debug("restarting pull", durable=self.spec.name, reason=str(error))
                await asyncio.sleep(0.2)

    async def _pull_from(self, pull: Pull, capacity: int) -> None:
        """Hold arriving messages until other consumers have used up the capacity."""
        while True:
            while len(self.held_messages) >= capacity and self.capacity.users <= 1:
                self.has_room.clear()
                await self.has_room.wait()
            if self._is_full and pull.arrived.empty():
                return  # which withdraws the open request
            message = await pull.next(self._request_size(capacity))
            while message is not None:
                self.received_at = time.monotonic()
                if self._is_full:
                    await keep_cancellation(message.nak())  # another host may have capacity
                elif not await self._offer_to_glance(message):
                    self._add_held(message)
                    self.waiting.put_nowait(message)
                message = pull.next_nowait() if len(self.held_messages) < capacity else None

    @property
    def _is_full(self) -> bool:
        """Whether other consumers have used up the shared capacity."""
        return self.capacity.users > 1 and not self.capacity.free

    def _request_size(self, capacity: int) -> int:
        """Return how many messages to request. Consumers share the free capacity; one that is
        receiving takes half of it, because idle consumers do not use their shares.
        """
        if self.capacity.users <= 1:
            return capacity - len(self.held_messages)
        is_receiving = time.monotonic() - self.received_at < _RECEIVING_SECONDS
        return max(1, self.capacity.free // (2 if is_receiving else self.capacity.users))

    def _add_held(self, message: Msg) -> None:
        self.held_messages[message.reply] = message
        self.capacity.hold()

    def _release(self, reply: str) -> bool:
        """Stop holding a message; return whether it was held."""
        if self.held_messages.pop(reply, None) is None:
            return False
        self.capacity.release()
        self.has_room.set()
        return True

    async def _offer_to_glance(self, message: Msg) -> bool:
        """Offer a message's events to `glance`; return whether they need no further handling."""
        glance = self.reader.glance
        if glance is None:
            return False
        try:
            events = await self._unpack(message)
        except (Permanent, Temporary):
            return False  # the handler's verdict decides what happens to it
        remaining: list[Recorded | Permanent] = []
        pending: list[asyncio.Future[None]] = []
        for event in events:
            verdict = not isinstance(event, Permanent) and glance(event)
            if isinstance(verdict, asyncio.Future):
                pending.append(verdict)
            elif not verdict:
                remaining.append(event)
        if remaining:
            self.unhandled[message.reply] = remaining
            return False
        if pending:
            self._ack_after(message, pending)
            return True
        with suppress(nats.errors.Error):
            self.stored.client.publish_nowait(message.reply)
        return True

    def _ack_after(self, message: Msg, pending: Sequence[asyncio.Future[None]]) -> None:
        """Hold the message, and ack it once all of `pending` are done."""
        self._add_held(message)

        def answer(_: asyncio.Future[None]) -> None:
            if all(future.done() for future in pending) and self._release(message.reply):
                with suppress(nats.errors.Error):
                    self.stored.client.publish_nowait(message.reply)

        for future in pending:
            future.add_done_callback(answer)

    async def _keep_alive(self) -> None:
        """Send progress notices for the held messages. If a notice is too late, they have already
        been delivered to other consumers.
        """
        ack_wait = self.stored.settings.ack_wait_seconds
        last_progress = time.monotonic()
        while True:
            await self._record_connection()
            await asyncio.sleep(ack_wait / 3)
            if (
                time.monotonic() - last_progress > max(ack_wait, _MAX_PAUSE_SECONDS)
                and self.held_messages
            ):
                self._drop_held()
            if self.stored.client.is_connected:
                last_progress = time.monotonic()
            for message in tuple(self.held_messages.values()):
                with suppress(nats.errors.Error):
                    self.stored.client.publish_nowait(message.reply, Msg.Ack.Progress)

    async def _record_connection(self) -> None:
        reconnects = self.stored.client.stats["reconnects"]
        if (
            self.spec.stream != WORK.name
            or self.baseline[0] == reconnects
            or self.stored.settings.replicas > 1
        ):
            return
        with suppress(BusUnavailable):
            self.baseline = (reconnects, (await self.stored.state(self.spec.stream)).last_seq)

    def _is_fresh(self, message: Msg, place: DeliveryPlace) -> bool:
        """Return whether the message is work that no consumer can have begun."""
        reconnects, last_seq = self.baseline
        marked = message.headers is not None and message.headers.keys() >= FRESH.keys()
        return (
            marked
            and place.deliveries == 1
            and place.seq > last_seq
            and self.stored.client.stats["reconnects"] == reconnects
        )

    def _drop_held(self) -> None:
        """Drop all held messages: this process was suspended or cut off for so long that they were
        delivered again.
        """
        log.warning(
            "process was suspended too long; its messages go to other consumers",
            durable=self.spec.name,
            held=len(self.held_messages),
        )
        self.capacity.release(len(self.held_messages))
        self.held_messages.clear()
        self.unhandled.clear()
        for lease in self.leases.values():
            if not lease.expired():  # else it was dropped before, and its handler is still ending
                lease.reschedule(0)
        self.has_room.set()

    async def _work(self) -> None:
        while True:
            message = await self.waiting.get()
            if message.reply not in self.held_messages:
                continue  # dropped while it waited
            async with self.capacity.turns:
                if message.reply in self.held_messages:
                    await self._handle_logged(message)

    async def _handle_logged(self, message: Msg) -> None:
        lease = asyncio.timeout(None)
        self.leases[message.reply] = lease
        try:
            async with lease:
                await self._handle(message)
        except TimeoutError:
            if not lease.expired():
                raise
        except Exception:
            # A bug. The message stays unanswered, so it is delivered again after the ack wait.
            self._release(message.reply)
            raise
        finally:
            del self.leases[message.reply]
        self._release(message.reply)

    async def _handle(self, message: Msg) -> None:
        place = DeliveryPlace.parse(message.reply)
        if place.deliveries > 1:
            metrics.BUS_REDELIVERIES.add(self.spec.name)
        verdict = await judge(
            self.stored.limits,
            self.reader.handle,
            lambda: self._unpack(message),
            deliveries=place.deliveries,
        )
        if isinstance(verdict, Bury):
            verdict = await self._store_dead_letter(message, verdict)
        # If the answer is lost, the message is only delivered again.
        with suppress(nats.errors.Error):
            match verdict:
                case Ack():
                    self.stored.client.publish_nowait(message.reply)
                case Bury():
                    await keep_cancellation(message.term())
                case Nak(delay, reason):
                    log.info(
                        "message will be redelivered",
                        durable=self.spec.name,
                        after=delay,
                        reason=reason,
                    )
                    await keep_cancellation(message.nak(delay))

    async def _unpack(self, message: Msg) -> list[Recorded | Permanent]:
        """Return the message's events that remain to be handled."""
        if (remaining := self.unhandled.pop(message.reply, None)) is not None:
            return remaining
        place = DeliveryPlace.parse(message.reply)
        extra = {
            "about": registry.topic_id_of(message.subject),
            "deliveries": str(place.deliveries),
            "place": str(place.number),
        }
        if self._is_fresh(message, place):
            extra["fresh"] = "1"
        events = await self.packer.unpack_all(message.data)
        if self.spec.stream != WORK.name:  # work events were recorded elsewhere before
            events = await forward(
                events, message.subject, place.seq, self.packer, self.stored.put_raw
            )
        return batching.to_records(place.seq, events, extra)

    async def _store_dead_letter(self, message: Msg, verdict: Bury) -> Bury | Nak:
        """Store the dead letter; only after that is the message given up."""
        place = message.metadata
        log.warning(
            "dead letter",
            durable=self.spec.name,
            subject=message.subject,
            code=verdict.code,
            reason=verdict.reason,
        )
        origin = raw_store.LetterOrigin(
            place.stream,
            self.spec.name,
            message.subject,
            place.sequence.stream,
            place.num_delivered,
        )
        try:
            await raw_store.store_dead_letter(self.stored, origin, message.data, verdict)
        except (BusUnavailable, Permanent) as error:
            return Nak(
                self.stored.limits.retry_seconds,
                f"its dead letter could not be stored: {error.message}",
            )
        metrics.BUS_DEAD_LETTERS.add(self.spec.name)
        return verdict


# Moves waiting work into the queues of roles, in turns of tenants: see `moothall.events.delivery`.


_IDLE_SECONDS, _BUSY_SECONDS = 0.5, 0.05
_LOOK_SECONDS, _AGAIN_SECONDS = 0.05, 0.005  # how long an answer about a queue is used
_FULL_SECONDS = 0.1  # how long a deliberation waits for a place in a full queue
_MOVED = ".turn"
"""Added to the id of a message that is moved, because the stream stores each id only once."""
_ERRORS = (nats.errors.Error, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class _QueueReport:
    """A report of the bus on the queue of a role: whether deliberations wait for a turn, and how
    many more fit into the queue itself.

    ended: how many this process had sent before. at: when it was asked (monotonic seconds).
    """

    has_waiting: bool
    free: int
    ended: int
    at: float


class WorkQueue:
    """The queues of roles on one bus, as one process sees them."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._turns: defaultdict[str, Turns] = defaultdict(Turns)
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._failing: set[tuple[str, str]] = set()
        self._reports: dict[str, _QueueReport] = {}
        self._entering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def enter(self, role: str) -> bool:
        """Return whether the next deliberation of a role may go into its queue now, and count it.
        The caller calls `leave` after sending it.

        If the queue is full and nothing waits for a turn, this first gives the hosts a moment to
        take what is in it: many callers may ask at once while hosts are idle, and a deliberation
        that waits for a turn costs several requests more.
        """
        until = time.monotonic() + _FULL_SECONDS
        async with self._entering[role]:
            while True:
                report = await self._read_report(role)
                if not self._is_full(role, report):
                    self._begun[role] += 1
                    return True
                if report.has_waiting or time.monotonic() > until:
                    return False
                await asyncio.sleep(_AGAIN_SECONDS)

    def _is_full(self, role: str, report: _QueueReport) -> bool:
        """Return whether the next deliberation must wait for a turn: others do, or the queue may be
        full, with those sent since the bus was asked or being sent.
        """
        return report.has_waiting or self._begun[role] - report.ended >= report.free

    async def _read_report(self, role: str) -> _QueueReport:
        """Return what the bus says about a queue. An answer is used again for a moment, and longer
        if the queue is not full.
        """
        at, ended = time.monotonic(), self._ended[role]
        if (last := self._reports.get(role)) is not None:
            kept_seconds = _AGAIN_SECONDS if self._is_full(role, last) else _LOOK_SECONDS
            if at - last.at < kept_seconds:
                return last
        has_waiting, free = False, MAX_QUEUED
        try:
            has_waiting = bool((await self.waiting()).get(role))  # these come first
            free = 0 if has_waiting else await self._count_free(role)
        except _ERRORS:
            log.debug("the bus did not report how many deliberations wait", role=role)
        report = self._reports[role] = _QueueReport(has_waiting, free, ended, at)
        return report

    def leave(self, role: str) -> None:
        """Note that a deliberation was sent, or that sending it failed."""
        self._ended[role] += 1

    async def waiting(self) -> dict[str, Counter[str]]:
        """Return the numbers of deliberations that wait for a turn, by role and tenant."""
        pattern = registry.subject(Channel.WORK.all)
        info = await keep_cancellation(
            self._stored.js.stream_info(WORK.name, subjects_filter=pattern)
        )
        waiting: dict[str, Counter[str]] = defaultdict(Counter)
        for subject, count in (info.state.subjects or {}).items():
            if (parsed := parse_waiting(registry.topic_id_of(subject))) is not None:
                waiting[parsed[0]][parsed[1]] = count
        return waiting

    async def dispatch(self) -> None:
        """Move waiting deliberations until cancelled. One process does this at a time; if several
        do, or one is killed, no deliberation is lost or begun twice.
        """
        while True:
            waiting: dict[str, Counter[str]] = {}
            moved_count = 0
            try:
                waiting = await self.waiting()
                for role, tenants in waiting.items():
                    moved_count += await self._fill_queue(role, tenants)
            except (*_ERRORS, BusUnavailable) as error:
                log.info("waiting work was not moved; will retry", reason=str(error))
            if not moved_count:
                await asyncio.sleep(_BUSY_SECONDS if waiting else _IDLE_SECONDS)

    async def _fill_queue(self, role: str, tenants: Counter[str]) -> int:
        """Fill the queue of a role, and return how many deliberations were moved."""
        moved_count = 0
        for _ in range(await self._count_free(role)):
            if (tenant := self._turns[role].choose(tenants)) is None:
                break
            tenants[tenant] -= 1
            try:
                await self._move_oldest(role, tenant)
            except MoothallError as error:
                tenants[tenant] = 0  # other tenants continue
                if (role, tenant) not in self._failing:
                    self._failing.add((role, tenant))
                    reason = error.message
                    log.warning("waiting work cannot move", role=role, tenant=tenant, reason=reason)
                continue
            self._failing.discard((role, tenant))
            moved_count += 1
        return moved_count

    async def _move_oldest(self, role: str, tenant: str) -> None:
        """Move the oldest deliberation of a tenant into the queue of its role."""
        try:
            oldest = await keep_cancellation(
                self._stored.js.get_msg(
                    WORK.name,
                    seq=1,
                    subject=registry.literal(waiting_topic(role, tenant)),
                    next=True,
                )
            )
        except NotFoundError:
            return
        await self._stored.put_raw(
            registry.literal(Channel.WORK.of(role)),
            oldest.data or b"",
            message_id=f"{(oldest.headers or {}).get(MESSAGE_ID, f'work-{oldest.seq}')}{_MOVED}",
        )
        try:
            await self._stored.delete_raw(WORK.name, oldest.seq or 0, erase=False)
        except NotFound:
            log.debug("another process moved this work too", role=role, seq=oldest.seq)

    async def _count_free(self, role: str) -> int:
        """Return how many more deliberations may wait in the queue of a role itself."""
        info = await keep_cancellation(
            self._stored.js.consumer_info(WORK.name, registry.host_durable(role))
        )
        return queue_limit(info.num_ack_pending or 0) - (info.num_pending or 0)
