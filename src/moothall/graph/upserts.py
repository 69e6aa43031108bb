"""A batch of changes (nodes, groups of properties, relations), independent of order and
repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from moothall.domain.ids import digest
from moothall.graph.schema import EMPTY, LABELS, RELATED, Group, Kind

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
