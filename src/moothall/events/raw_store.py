"""Stored messages in raw form, for dead letters and pruning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Raw:
    """One stored message. `time` is when the bus stored it, in UTC."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    data: bytes
    time: datetime


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream holds."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int


class RawStore(Protocol):
    """Access to streams without decoding their events."""

    def raw(self, stream: str, after_seq: int = 0) -> AsyncIterator[Raw]:
        """Yield the messages that are stored now, in order."""
        ...

    async def put_raw(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        message_id: str = "",
    ) -> int:
        """Store and return the seq; a repeated `message_id` returns the seq of the first."""
        ...

    async def delete_raw(self, stream: str, seq: int) -> None:
        """Remove one message. Raises `NotFound`."""
        ...

    async def purge(self, stream: str, before_seq: int) -> int:
        """Remove all messages with a seq below `before_seq` and return their number."""
        ...

    async def removed_seqs(self, stream: str) -> frozenset[int]:
        """Return the seqs that were removed on purpose between others."""
        ...

    async def state(self, stream: str) -> StreamState:
        """Return what a stream holds."""
        ...
