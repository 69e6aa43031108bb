"""Operators' overrides, which every gateway follows without a restart: switched-off tools of a
tenant, revoked tokens and workspaces.
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
"""The buckets of these overrides."""


class _Overrides:
    """The local copy of a bucket. `refresh` reads it once, `run` follows it, and lookups are
    local.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def refresh(self) -> None:
        """Read the current entries. Raises `BusUnavailable`."""
        for key, document in (await self._bucket.entries()).items():
            self._apply(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, document in changes:
                self._apply(key, document)

    async def _publish(self, key: str, who: str, reason: str, **fields: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        document = {**fields, "who": who, "reason": reason[:500], "time": time}
        await self._bucket.put(key, document)
        self._apply(key, document)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Switches(_Overrides):
    """The tools that are switched off per tenant, from the bucket SWITCHES."""

    def __init__(self, bucket: Bucket, known: Container[str] = CATALOGUE) -> None:
        super().__init__(bucket)
        self._known = known
        self._off: dict[str, frozenset[str]] = {}

    def off(self, tenant: str) -> frozenset[str]:
        """Return the names of the tools that are switched off for a tenant."""
        return self._off.get(tenant, frozenset())

    async def switch(
        self, tenant: str, tool: str, *, enabled: bool, who: str, reason: str = ""
    ) -> None:
        """Switch a tool on or off for a tenant. Raises `InvalidRequest` for an unknown tool,
        `BusUnavailable`.
        """
        check_id(tenant, "tenant")
        if tool not in self._known:
            raise InvalidRequest(
                f"there is no tool {tool[:60]!r}; `moothall tools list` shows them"
            )
        await self._publish(f"{tenant}.{tool}", who, reason, enabled=enabled)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        tenant, _, tool = key.partition(".")
        off = self._off.get(tenant, frozenset())
        # Anything but True is off: an unreadable document must not switch a tool on.
        self._off[tenant] = off - {tool} if document.get("enabled") is True else off | {tool}
        log.debug("tool switched", tenant=tenant, tool=tool, enabled=document.get("enabled"))


class Revocations(_Overrides):
    """Revoked tokens and workspaces, from the bucket REVOKED. Its entries outlive every token."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._ids: set[str] = set()

    def any(self, ids: Iterable[str]) -> bool:
        """Return whether one of these ids was revoked."""
        return not self._ids.isdisjoint(ids)

    async def revoke(self, token_or_workspace: str, *, who: str, reason: str = "") -> None:
        """Revoke a token and its children by its id (`jti`), or all tokens of a workspace.

        Raises `InvalidRequest`, `BusUnavailable`.
        """
        await self._publish(token_or_workspace, who, reason)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        del document
        self._ids.add(key)
