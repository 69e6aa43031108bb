"""Search of the tool catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moothall.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a search, all of which must match. Of several `categories`, `tags` or `profiles`,
    one must match. `limit` is the maximum number of results; 0: all.
    """

    query: str = ""
    categories: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    exclude_dangerous: bool = False
    limit: int = 0


def discover(specs: Iterable[ToolSpec], filters: Filters) -> tuple[ToolSpec, ...]:
    """Return the matching tools in catalogue order. Each word of the query must be in the name, the
    summary or a tag.
    """
    terms = filters.query.lower().split()
    matches = tuple(
        spec
        for spec in specs
        if _fits(spec, filters) and all(term in _text(spec) for term in terms)
    )
    return matches[: filters.limit] if filters.limit else matches


def _fits(spec: ToolSpec, filters: Filters) -> bool:
    return (
        (not filters.categories or spec.category in filters.categories)
        and (not filters.tags or bool(set(spec.tags) & set(filters.tags)))
        and (not filters.profiles or bool(set(spec.profiles) & set(filters.profiles)))
        and not (filters.exclude_dangerous and spec.dangerous)
    )


def _text(spec: ToolSpec) -> str:
    return " ".join((spec.name, spec.summary, *spec.tags)).lower()


def entry(spec: ToolSpec, *, enabled: bool = True) -> dict[str, Any]:
    """Return the catalogue entry of a tool as JSON."""
    return {
        "id": spec.id,
        "summary": spec.summary,
        "category": spec.category,
        "tags": list(spec.tags),
        "version": spec.version,
        "profiles": list(spec.profiles),
        "enabled": enabled,
        "danger": spec.danger.value,
        "dangerous": spec.dangerous,
        "requirements": {
            "os_access": spec.requirements.os_access,
            "network_access": spec.requirements.network_access,
            "file_system": spec.requirements.file_system,
        },
        "rate_limit": {"per_minute": spec.rate.per_minute, "per_hour": spec.rate.per_hour},
        "cache_seconds": spec.cache_seconds,
        "limits": {"seconds": spec.caps.seconds, "result_bytes": spec.caps.result_bytes},
        "cost": spec.cost.value,
        "input_schema": spec.schema(None),
        "output_schema": spec.output_schema(),
        "examples": [
            {
                "about": example.about,
                "arguments": _plain(example.arguments),
                "output": _plain(example.output),
            }
            for example in spec.examples
        ],
    }


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value)
