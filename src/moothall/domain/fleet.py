"""Hosts and their state, as they report it."""

from __future__ import annotations

from dataclasses import dataclass

from moothall.domain.ids import TaskKey
from moothall.domain.topic import Channel

FLEET = Channel.HOSTS.of("fleet")
"""The topic on which hosts report their state."""


@dataclass(frozen=True, slots=True)
class Held:
    """A deliberation that a host works on, by its key; `since` in seconds since 1970."""

    task_id: TaskKey
    since: float


@dataclass(frozen=True, slots=True)
class HostState:
    """A host: its name, the machine it runs on, its process there, its start (seconds since 1970),
    and the deliberations that it works on.
    """

    name: str
    node: str
    pid: int
    since: float
    holds: tuple[Held, ...] = ()
