"""Delivery of messages, the same for every bus: how one is answered, and the turns of tenants in
the work queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from moothall.domain.event import Channel, Recorded, Topic
from moothall.domain.ids import ROLES
from moothall.errors import Permanent, Superseded, Temporary
from moothall.ports import Handler

# How the delivery of a message is answered: the same rules for every bus.


MAX_DELAY = 60.0


@dataclass(frozen=True, slots=True)
class BusLimits:
    """The limits of a connection to the bus that are not settings.

    blob_bytes: larger payload fields are stored in the object store. max_deliver: deliveries of a
    work item before it becomes a dead letter. retry_seconds: the first delay of a redelivery; it
    doubles, up to `MAX_DELAY`. in_flight: concurrent publishes; further ones wait. publish_seconds:
    how long a publish is retried while the bus is unavailable. batch_seconds: events of a
    deliberation within this time form one message, a JSON batch of CloudEvents; 0: one message per
    event.
    """

    blob_bytes: int = 256_000
    max_deliver: int = 5
    retry_seconds: float = 0.5
    in_flight: int = 1024
    publish_seconds: float = 30.0
    batch_seconds: float = 0.01


BUS_LIMITS = BusLimits()


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is handled."""


@dataclass(frozen=True, slots=True)
class Nak:
    """Deliver the message again after `delay` seconds."""

    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Do not deliver the message again; move it to the dead letters."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Do not answer: another consumer has the message."""


Verdict = Ack | Nak | Bury | Leave


def delay_of(limits: BusLimits, deliveries: int, requested: float | None) -> float:
    """Return the seconds before the next delivery: what the error requested, or else a delay that
    doubles with each delivery; at most a minute.
    """
    doubled = limits.retry_seconds * 2.0 ** min(deliveries - 1, 16)
    return min(requested if requested is not None else doubled, MAX_DELAY)


async def judge(
    limits: BusLimits,
    handler: Handler,
    unpack: Callable[[], Awaitable[Sequence[Recorded | Permanent]]],
    *,
    deliveries: int,
) -> Verdict:
    """Decode and handle a message, and return how to answer it. A bug in the handler is not caught.

    `unpack` returns the events of the message, with an error in place of each event that cannot be
    read. The readable events are handled even if others fail; the message is then buried with the
    first error.

    The limit on deliveries is enforced here and not by the bus, which would silently stop
    delivering.
    """
    if deliveries > limits.max_deliver:
        return Bury("UNANSWERED", f"delivered {limits.max_deliver} times without an answer")
    try:
        failures: list[Permanent] = []
        for recorded in await unpack():
            if isinstance(recorded, Permanent):
                failures.append(recorded)
                continue
            try:
                await handler(recorded)
            except Superseded:
                raise
            except Permanent as error:
                failures.append(error)
    except Superseded:
        return Leave()
    except Temporary as error:
        if deliveries >= limits.max_deliver:
            return Bury(error.code, f"still failing at delivery {deliveries}: {error.message}")
        return Nak(delay_of(limits, deliveries, error.retry_after), error.message)
    except Permanent as error:
        return Bury(error.code, error.message)
    return Bury(failures[0].code, failures[0].message) if failures else Ack()


# Turns of tenants in the work queue.
#
# At most `queue_limit` deliberations of a role wait in its queue itself, where hosts take them in
# order. Further ones wait in a queue of their tenant, and are moved into the queue of the role in
# turns of tenants.


MAX_QUEUED = 8
"""Enough that a few hosts do not wait while the next deliberations are moved."""
_RUNNING_SHARE = 4


def queue_limit(running: int) -> int:
    """Return how many deliberations may wait in the queue of a role: a quarter of the
    running ones, and at least `MAX_QUEUED`. A deliberation behind them then waits for at most a
    quarter of the duration of a deliberation.
    """
    return max(MAX_QUEUED, running // _RUNNING_SHARE)


def is_shared(topic: Topic) -> bool:
    """Return whether tenants take turns in the queue of a topic."""
    return topic.channel is Channel.WORK and topic.about in ROLES


def waiting_topic(role: str, tenant: str) -> Topic:
    """Return the topic of deliberations of a role that wait for the turn of their tenant. It is in
    the channel of work, so the permission to enqueue work includes it.
    """
    return Channel.WORK.of(f"{role}_{tenant}")


def parse_waiting(about: str) -> tuple[str, str] | None:
    """Return role and tenant of `waiting_topic`; None for the queue of a role."""
    role, separator, tenant = about.partition("_")
    return (role, tenant) if separator and role in ROLES else None


class Turns:
    """The order of tenants in one queue: round robin by name."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, waiting: Mapping[str, int]) -> str | None:
        """Return the tenant whose turn is next among those with waiting work; None without any."""
        tenants = sorted(tenant for tenant, count in waiting.items() if count)
        if not tenants:
            return None
        later = [tenant for tenant in tenants if tenant > self._last]
        self._last = (later or tenants)[0]
        return self._last
