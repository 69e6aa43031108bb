"""A cache of results, for tools whose catalogue entry allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from cachetools import TLRUCache

from moothall.domain.ids import digest
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.tools.arguments import canonical
from moothall.tools.spec import ToolSpec


def cache_key(tenant: str, workspace: str, spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call's result. Tenants never share a key; tools that read files have one
    per workspace.
    """
    scope = "" if spec.requirements.file_system == "none" else workspace
    return digest(tenant, scope, spec.name, spec.version, canonical(arguments))


@dataclass(frozen=True, slots=True)
class _Entry:
    result: ToolResult
    size: int
    seconds: float


class ResultCache:
    """A cache of successful results, with the lifetime from the catalogue and at most `max_bytes`
    of output.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self._entries: TLRUCache[str, _Entry] = TLRUCache(
            max_bytes,
            ttu=lambda _, entry, now: now + entry.seconds,
            timer=clock,
            getsizeof=lambda entry: entry.size,
        )

    def get(self, key: str) -> ToolResult | None:
        """Return the cached result, or None."""
        entry = self._entries.get(key)
        return entry.result if entry else None

    def put(self, key: str, spec: ToolSpec, result: ToolResult) -> None:
        """Store a result, unless it failed, is too large, or its tool has no cache time."""
        if result.status is not ToolStatus.SUCCESS or spec.cache_seconds <= 0:
            return
        entry = _Entry(result, len(canonical(result.output)), spec.cache_seconds)
        if entry.size <= self._entries.maxsize:
            self._entries[key] = entry
