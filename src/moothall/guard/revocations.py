"""Tokens and workspaces that are called off. Every gate follows without a restart."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime

from moothall.ports import Bucket

BUCKET = "revoked"


class Revocations:
    """The bucket `revoked` as this process knows it. It forgets what is older than any token lives."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._ids: set[str] = set()

    async def refresh(self) -> None:
        """Read how it stands now. Raises `BusUnavailable`."""
        self._ids.update(await self._bucket.entries())

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, _ in changes:
                self._ids.add(key)

    def any(self, ids: Iterable[str]) -> bool:
        """Whether one of these was revoked."""
        return not self._ids.isdisjoint(ids)

    async def revoke(self, token_or_workspace: str, *, who: str, reason: str = "") -> None:
        """Call off a token by its id (`jti`) with all that was made from it, or all tokens of a workspace.

        Raises `InvalidRequest`, `BusUnavailable`.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        await self._bucket.put(token_or_workspace, {"who": who, "reason": reason[:500], "time": time})
        self._ids.add(token_or_workspace)
