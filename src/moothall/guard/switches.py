"""Which tools a tenant is without. An operator switches them; every gate and every prompt follows without a restart."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest
from moothall.ports import Bucket
from moothall.telemetry import get_logger
from moothall.tools.catalogue import CATALOGUE

log = get_logger(__name__)

BUCKET = "tools"


class Switches:
    """The bucket `tools` as this process knows it. `refresh` reads it once, `run` follows it; asking costs nothing."""

    def __init__(self, bucket: Bucket, known: Container[str] = CATALOGUE) -> None:
        self._known = known
        self._bucket = bucket
        self._off: dict[str, frozenset[str]] = {}

    async def refresh(self) -> None:
        """Read how it stands now. Raises `BusUnavailable`."""
        for key, document in (await self._bucket.entries()).items():
            self._take(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, document in changes:
                self._take(key, document)

    def off(self, tenant: str) -> frozenset[str]:
        """Return the names of the tools that this tenant is without."""
        return self._off.get(tenant, frozenset())

    async def switch(self, tenant: str, tool: str, *, enabled: bool, who: str, reason: str = "") -> None:
        """Give a tool to a tenant or take it away. Raises `InvalidRequest` for an unknown tool, `BusUnavailable`."""
        check_id(tenant, "tenant")
        if tool not in self._known:
            raise InvalidRequest(f"there is no tool {tool[:60]!r}; `moothall tools list` shows them")
        time = datetime.now(UTC).isoformat(timespec="seconds")
        document = {"enabled": enabled, "who": who, "reason": reason[:500], "time": time}
        await self._bucket.put(f"{tenant}.{tool}", document)
        self._take(f"{tenant}.{tool}", document)

    def _take(self, key: str, document: Mapping[str, Any]) -> None:
        tenant, _, tool = key.partition(".")
        off = self._off.get(tenant, frozenset())
        # What is no plain True is off: a document that cannot be read must not give a tool back.
        self._off[tenant] = off - {tool} if document.get("enabled") is True else off | {tool}
        log.debug("tool switched", tenant=tenant, tool=tool, enabled=document.get("enabled"))
