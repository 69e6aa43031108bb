"""Results that stand for a while, for the tools whose catalogue entry says so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from moothall.domain.ids import digest
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.tools.arguments import canonical
from moothall.tools.spec import ToolSpec


def cache_key(tenant: str, workspace: str, spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call's result. No two tenants share one; a tool that looks at files has one a workspace."""
    where = "" if spec.requirements.file_system == "none" else workspace
    return digest(tenant, where, spec.name, spec.version, canonical(arguments))


class ResultCache:
    """Successful results only, each until the catalogue's time is over; at most `most_bytes` of arguments' answers."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self._most = most_bytes
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, int, ToolResult]] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> ToolResult | None:
        """Return what stands, or None."""
        found = self._kept.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[2]

    def put(self, key: str, spec: ToolSpec, result: ToolResult) -> None:
        """Keep a result, unless it failed or the catalogue does not say for how long."""
        if result.status is not ToolStatus.SUCCESS or spec.cache_seconds <= 0:
            return
        size = len(canonical(result.output))
        self._drop(key)
        self._kept[key] = (self._clock() + spec.cache_seconds, size, result)
        self._bytes += size
        while self._bytes > self._most and self._kept:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._bytes -= gone[1]
