"""Moves waiting work into the queues of roles, in turns of tenants: see `moothall.events.turns`."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import nats.errors
from nats.js.errors import NotFoundError

from moothall.domain.topic import Channel
from moothall.errors import BusUnavailable, MoothallError, NotFound
from moothall.events import registry
from moothall.events.nats.connection import log
from moothall.events.nats.fast_client import keep_cancellation
from moothall.events.nats.layout import MESSAGE_ID
from moothall.events.nats.stream_store import Stored
from moothall.events.registry import WORK
from moothall.events.turns import MAX_QUEUED, Turns, parse_waiting, waiting_topic

_IDLE_SECONDS, _BUSY_SECONDS = 0.5, 0.05
_MOVED = ".turn"
"""Added to the id of a message that is moved, because the stream stores each id only once."""
_ERRORS = (nats.errors.Error, TimeoutError, OSError)


class WorkQueue:
    """The queues of roles on one bus, as one process sees them."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._turns: defaultdict[str, Turns] = defaultdict(Turns)
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._failing: set[tuple[str, str]] = set()

    async def enter(self, role: str) -> bool:
        """Return whether the next deliberation of a role may go into its queue now, and count it.
        The caller calls `leave` after sending it.
        """
        ended_before = self._ended[role]
        try:
            if (await self.waiting()).get(role):
                return False  # waiting ones come first
            queued = await self._count_queued(role)
        except _ERRORS:
            queued = 0
        # That number may lack those sent since the request, or being sent.
        if queued + self._begun[role] - ended_before >= MAX_QUEUED:
            return False
        self._begun[role] += 1
        return True

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
            if (parsed := parse_waiting(registry.about(subject))) is not None:
                waiting[parsed[0]][parsed[1]] = count
        return waiting

    async def dispatch(self) -> None:
        """Move waiting deliberations until cancelled. One process does this at a time; if several
        do, or one is killed, no deliberation is lost or begun twice.
        """
        while True:
            waiting: dict[str, Counter[str]] = {}
            moved = 0
            try:
                waiting = await self.waiting()
                for role, tenants in waiting.items():
                    moved += await self._fill(role, tenants)
            except (*_ERRORS, BusUnavailable) as error:
                log.info("waiting work was not moved; will retry", reason=str(error))
            if not moved:
                await asyncio.sleep(_BUSY_SECONDS if waiting else _IDLE_SECONDS)

    async def _fill(self, role: str, tenants: Counter[str]) -> int:
        """Fill the queue of a role, and return how many deliberations were moved."""
        moved = 0
        for _ in range(MAX_QUEUED - await self._count_queued(role)):
            if (tenant := self._turns[role].choose(tenants)) is None:
                break
            tenants[tenant] -= 1
            try:
                await self._move(role, tenant)
            except MoothallError as error:
                tenants[tenant] = 0  # other tenants continue
                if (role, tenant) not in self._failing:
                    self._failing.add((role, tenant))
                    reason = error.message
                    log.warning("waiting work cannot move", role=role, tenant=tenant, reason=reason)
                continue
            self._failing.discard((role, tenant))
            moved += 1
        return moved

    async def _move(self, role: str, tenant: str) -> None:
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
            await self._stored.delete_raw(WORK.name, oldest.seq or 0)
        except NotFound:
            log.debug("another process moved this work too", role=role, seq=oldest.seq)

    async def _count_queued(self, role: str) -> int:
        """Return how many deliberations wait in the queue of a role itself."""
        info = await keep_cancellation(
            self._stored.js.consumer_info(WORK.name, registry.host_durable(role))
        )
        return info.num_pending or 0
