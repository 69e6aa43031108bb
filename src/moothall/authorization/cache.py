"""Results that stand for a while, for the tools whose catalogue entry says so."""

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
    """Return the key of a call's result. No two tenants share one; a tool that looks at files has
    one a workspace.
    """
    where = "" if spec.requirements.file_system == "none" else workspace
    return digest(tenant, where, spec.name, spec.version, canonical(arguments))


@dataclass(frozen=True, slots=True)
class _Kept:
    result: ToolResult
    size: int
    seconds: float


class ResultCache:
    """Successful results only, each until the catalogue's time is over; at most `most_bytes` of
    answers.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self._kept: TLRUCache[str, _Kept] = TLRUCache(
            most_bytes,
            ttu=lambda _, kept, now: now + kept.seconds,
            timer=clock,
            getsizeof=lambda kept: kept.size,
        )

    def get(self, key: str) -> ToolResult | None:
        """Return what stands, or None."""
        kept = self._kept.get(key)
        return kept.result if kept else None

    def put(self, key: str, spec: ToolSpec, result: ToolResult) -> None:
        """Keep a result, unless it failed, is too large, or the catalogue does not say for how
        long.
        """
        if result.status is not ToolStatus.SUCCESS or spec.cache_seconds <= 0:
            return
        kept = _Kept(result, len(canonical(result.output)), spec.cache_seconds)
        if kept.size <= self._kept.maxsize:
            self._kept[key] = kept
