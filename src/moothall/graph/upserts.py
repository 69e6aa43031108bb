"""A batch of changes (nodes, groups of properties, relations), independent of order and
repetition. Read the fields of an event defensively: a field of the wrong type counts as
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from moothall.domain.codec import text_of
from moothall.domain.event import Event
from moothall.domain.ids import digest, own_id
from moothall.graph.schema import EMPTY, LABELS, RELATED, Group, Kind

# A batch of changes (nodes, groups of properties, relations), independent of order and repetition.


_KEY_CHARS = 200
_LIST_ITEMS = 100
_MAX_NUMBER = 2**63 - 1


class Ref(NamedTuple):
    """A reference to a node. Long keys are truncated and end with a digest. `uid` is unique across
    tenants.
    """

    label: str
    tenant: str
    key: str
    uid: str


@lru_cache(maxsize=4096)  # events of one deliberation refer to the same few nodes
def ref(label: str, tenant: str, *parts: str) -> Ref:
    """Return the reference to the node with this label whose key consists of `parts`."""
    tenant, key = bound_name(tenant), bound_name("/".join(parts))
    return Ref(label, tenant, key, uid(label, tenant, key))


def uid(label: str, tenant: str, key: str) -> str:
    """Return the unique id of a tenant's node with this key."""
    return f"{label}/{bound_name(tenant).replace('%', '%25').replace('/', '%2F')}/{bound_name(key)}"


def bound_name(name: str) -> str:
    """Return the name, shortened to the limit of the stores' indexes."""
    name = clean(name)
    return name if len(name) <= _KEY_CHARS else f"{name[: _KEY_CHARS - 33]}~{digest(name)[:32]}"


@dataclass(slots=True)
class Writes:
    """A batch of changes. Each group has the sort key of the event that wrote it."""

    text_chars: int = 2000
    nodes: set[Ref] = field(default_factory=set)
    groups: dict[tuple[Ref, str], tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    relations: set[tuple[Ref, str, Ref]] = field(default_factory=set)

    def node(self, node: Ref) -> None:
        """Write a node without properties."""
        self.nodes.add(node)

    def set_group(self, node: Ref, group_name: str, sort_key: str, **values: Any) -> None:
        """Write a group of a node's properties. Missing values are written as empty ones, so that a
        group is always complete.
        """
        self.nodes.add(node)
        group = group_of(node.label, group_name)
        unknown = values.keys() - group.properties.keys()
        if unknown:
            raise KeyError(f"{node.label}.{group_name} has no {', '.join(sorted(unknown))}")
        current = self.groups.get((node, group_name))
        if current is None or (sort_key > current[0] if group.latest else sort_key < current[0]):
            typed = {
                name: self._as_typed(kind, values.get(name))
                for name, kind in group.properties.items()
            }
            self.groups[node, group_name] = (sort_key, typed)

    def relate(self, start: Ref, kind: str, end: Ref) -> None:
        """Write a relation and the nodes at its ends."""
        if (start.label, kind, end.label) not in RELATED:
            raise KeyError(f"the schema has no ({start.label})-[:{kind}]->({end.label})")
        self.nodes |= {start, end}
        self.relations.add((start, kind, end))

    def _as_typed(self, kind: Kind, value: Any) -> Any:
        """Return the value with the type of the schema; an empty value if it has another type."""
        match kind:
            case "text" if isinstance(value, str):
                return clean(value[: self.text_chars])
            case "integer" if isinstance(value, int | float) and abs(value) <= _MAX_NUMBER:
                return int(value)
            case "float" if isinstance(value, int | float) and abs(value) <= _MAX_NUMBER:
                return float(value)
            case "boolean" if isinstance(value, bool):
                return value
            case "texts" if isinstance(value, list | tuple):
                return [clean(str(item)[: self.text_chars]) for item in value[:_LIST_ITEMS]]
        return [] if kind == "texts" else EMPTY[kind]


_GROUPS = {(label.name, group.name): group for label in LABELS.values() for group in label.groups}


def group_of(label: str, name: str) -> Group:
    """Return a group of a label; an unknown group is a bug."""
    return _GROUPS[label, name]


def clean(text: str) -> str:
    """Return the text without characters that a store refuses: lone surrogates and NUL."""
    if text.isascii() and "\0" not in text:  # the fast path for most texts
        return text
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


# Read the fields of an event defensively: a field of the wrong type counts as missing.


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
