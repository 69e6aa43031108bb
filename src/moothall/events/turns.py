"""Turns of tenants in the work queue.

At most `MAX_QUEUED` deliberations of a role wait in its queue itself, where hosts take them in
order. Further ones wait in a queue of their tenant, and are moved into the queue of the role in
turns of tenants.
"""

from __future__ import annotations

from collections.abc import Mapping

from moothall.domain.ids import ROLES
from moothall.domain.topic import Channel, Topic

MAX_QUEUED = 8
"""Enough that no host waits while the next deliberations are moved."""


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
