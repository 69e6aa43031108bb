"""Read the fields of an event defensively: a field of the wrong type counts as missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moothall.domain.codec import text_of
from moothall.domain.event import Event
from moothall.domain.ids import digest, own_id
from moothall.graph.upserts import Ref, Writes, clean, ref

_MAX_ITEMS = 1000
"""The maximum number of entries that are read from a list of an event."""
_COST_FIELDS = ("prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost_usd")


@dataclass(frozen=True, slots=True)
class EventFields:
    """The fields of an event, and the changes of the batch. `time` is UTC with a fixed length, so
    that it sorts as text.
    """

    writes: Writes
    event: Event
    data: Mapping[str, Any]
    time: str

    @property
    def sort_key(self) -> str:
        """The position of the event in the order of events: its time, then its id."""
        return f"{self.time} {self.event.id}"

    def ref(self, label: str, *parts: str) -> Ref:
        """Return a node of the event's tenant."""
        return ref(label, self.event.tenant, *parts)

    def text(self, name: str) -> str:
        """Return a text field; '' if it is missing or not a text."""
        value = text_of(self.data.get(name))
        # The graph separates tenants itself, so the id does not contain the tenant.
        return own_id(value, self.event.tenant) if name == "task_id" else value

    def object(self, name: str) -> Mapping[str, Any]:
        """Return an object field; empty if it is missing or not an object."""
        value = self.data.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def deliberation(self) -> Ref:
        """The deliberation that the event is about."""
        return self.ref("Deliberation", self.text("task_id"))

    @property
    def story(self) -> Ref:
        """The story that the event is about."""
        return self.ref("Story", self.text("story_id"))

    def seat(self, name: str) -> Ref:
        """Return the seat, connected to its deliberation."""
        seat = self.ref("Seat", self.text("task_id"), name)
        self.writes.relate(self.deliberation, "HAS_SEAT", seat)
        return seat

    def proposal(self, candidate: str, fingerprint: str) -> Ref:
        """Return a proposal's node. Two hosts may make two proposals with the same name at the same
        time, so the fingerprint is part of its key.
        """
        return self.ref("Proposal", self.text("task_id"), candidate, fingerprint)


def items_of(value: object) -> Sequence[Any]:
    """Return the first items; none if the value is not a list."""
    return value[:_MAX_ITEMS] if isinstance(value, list | tuple) else ()


def time_of(event: Event) -> str:
    """Return an event's time in UTC with a fixed length, '' if it has none."""
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


def fingerprint_of(data: Mapping[str, Any]) -> str:
    """Return the same fingerprint as `domain.proposal.Proposal.fingerprint`."""
    answer = text_of(data.get("diff")) or text_of(data.get("content"))
    return digest(clean(answer))[:16]


def cost_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost fields of a usage."""
    return {name: usage.get(name) for name in _COST_FIELDS}
