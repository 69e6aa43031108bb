"""What an event tells, read with distrust: a field of the wrong kind is one that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moothall.domain.codec import text_of
from moothall.domain.event import Event
from moothall.domain.ids import digest, own_id
from moothall.graph.upserts import Ref, Writes, clean, ref

_MOST = 1000
"""Entries of a list that one event may bring."""
_COST = ("prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost_usd")


@dataclass(frozen=True, slots=True)
class EventFields:
    """An event, and what every reader needs of it. `time` is UTC in one length, so that it sorts as
    text.
    """

    writes: Writes
    event: Event
    data: Mapping[str, Any]
    time: str

    @property
    def by(self) -> str:
        """What orders it among others: its time, then its id."""
        return f"{self.time} {self.event.id}"

    def ref(self, label: str, *parts: str) -> Ref:
        """Return a node of its tenant."""
        return ref(label, self.event.tenant, *parts)

    def text(self, name: str) -> str:
        """Return a field, '' where it is no text."""
        value = text_of(self.data.get(name))
        return (
            own_id(value, self.event.tenant) if name == "task_id" else value
        )  # the graph keeps tenants apart by itself

    def object(self, name: str) -> Mapping[str, Any]:
        """Return a field, empty where it is no object."""
        value = self.data.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def deliberation(self) -> Ref:
        """The deliberation that it is about."""
        return self.ref("Deliberation", self.text("task_id"))

    @property
    def story(self) -> Ref:
        """The story that it is about."""
        return self.ref("Story", self.text("story_id"))

    def seat(self, name: str) -> Ref:
        """The seat, bound to its deliberation."""
        seat = self.ref("Seat", self.text("task_id"), name)
        self.writes.relate(self.deliberation, "HAS_SEAT", seat)
        return seat

    def proposal(self, candidate: str, fingerprint: str) -> Ref:
        """Two hosts at once may make two proposals of one name: what is found of one belongs to no
        other.
        """
        return self.ref("Proposal", self.text("task_id"), candidate, fingerprint)


def items_of(value: object) -> Sequence[Any]:
    """Return the first items, none where it is no list."""
    return value[:_MOST] if isinstance(value, list | tuple) else ()


def time_of(event: Event) -> str:
    """Return its time in UTC and in one length, '' where it is none."""
    if not event.time:
        return ""
    try:
        time = datetime.fromisoformat(event.time)
        return (
            (time if time.tzinfo else time.replace(tzinfo=UTC))
            .astimezone(UTC)
            .isoformat(timespec="microseconds")
        )
    except (ValueError, OverflowError):
        return ""


def fingerprint_of(said: Mapping[str, Any]) -> str:
    """As `domain.proposal.Proposal.fingerprint`."""
    answer = text_of(said.get("diff")) or text_of(said.get("content"))
    return digest(clean(answer))[:16]


def cost_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a usage says of each cost."""
    return {name: usage.get(name) for name in _COST}
