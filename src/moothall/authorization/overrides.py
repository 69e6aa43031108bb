"""What operators order, which every gate follows without a restart: tools that a tenant is without,
tokens and workspaces that are called off.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest
from moothall.ports import Bucket
from moothall.telemetry import get_logger
from moothall.tools.catalogue import CATALOGUE

log = get_logger(__name__)

SWITCHES, REVOKED = "tools", "revoked"
"""The buckets of these orders."""


class _Orders:
    """A bucket as this process knows it. `refresh` reads it once, `run` follows it; asking costs
    nothing.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def refresh(self) -> None:
        """Read how it stands now. Raises `BusUnavailable`."""
        for key, document in (await self._bucket.entries()).items():
            self._take(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, document in changes:
                self._take(key, document)

    async def _give(self, key: str, who: str, reason: str, **said: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        document = {**said, "who": who, "reason": reason[:500], "time": time}
        await self._bucket.put(key, document)
        self._take(key, document)

    def _take(self, key: str, document: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Switches(_Orders):
    """Which tools a tenant is without, by the bucket SWITCHES."""

    def __init__(self, bucket: Bucket, known: Container[str] = CATALOGUE) -> None:
        super().__init__(bucket)
        self._known = known
        self._off: dict[str, frozenset[str]] = {}

    def off(self, tenant: str) -> frozenset[str]:
        """Return the names of the tools that this tenant is without."""
        return self._off.get(tenant, frozenset())

    async def switch(
        self, tenant: str, tool: str, *, enabled: bool, who: str, reason: str = ""
    ) -> None:
        """Give a tool to a tenant or take it away. Raises `InvalidRequest` for an unknown tool,
        `BusUnavailable`.
        """
        check_id(tenant, "tenant")
        if tool not in self._known:
            raise InvalidRequest(
                f"there is no tool {tool[:60]!r}; `moothall tools list` shows them"
            )
        await self._give(f"{tenant}.{tool}", who, reason, enabled=enabled)

    def _take(self, key: str, document: Mapping[str, Any]) -> None:
        tenant, _, tool = key.partition(".")
        off = self._off.get(tenant, frozenset())
        # What is no plain True is off: a document that cannot be read must not give a tool back.
        self._off[tenant] = off - {tool} if document.get("enabled") is True else off | {tool}
        log.debug("tool switched", tenant=tenant, tool=tool, enabled=document.get("enabled"))


class Revocations(_Orders):
    """Tokens and workspaces that are called off, by the bucket REVOKED, which forgets what is older
    than any token lives.
    """

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._ids: set[str] = set()

    def any(self, ids: Iterable[str]) -> bool:
        """Whether one of these was revoked."""
        return not self._ids.isdisjoint(ids)

    async def revoke(self, token_or_workspace: str, *, who: str, reason: str = "") -> None:
        """Call off a token by its id (`jti`) with all that was made from it, or all tokens of a
        workspace.

        Raises `InvalidRequest`, `BusUnavailable`.
        """
        await self._give(token_or_workspace, who, reason)

    def _take(self, key: str, document: Mapping[str, Any]) -> None:
        del document
        self._ids.add(key)
