"""What the AUDIT stream is told of audit chains, so that a chain that ends earlier than it once did
is found.

A head that is told of vouches for all records before it, so that one that could not be told is made
up for by the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from moothall.authorization.audit_chain import Head, StreamChains, head_mac
from moothall.domain.event import Event, EventType, Recorded
from moothall.errors import MoothallError
from moothall.telemetry import get_logger
from moothall.telemetry.events import write

log = get_logger(__name__)

_GATHER_SECONDS = 0.2
_RECORDS, _KEPT = 64, 10_000  # of one event; that wait while the bus cannot be reached


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record of a tenant's chain, and what signs it as a head."""

    tenant: str
    record: Mapping[str, Any]
    mac: str


class AuditPublisher:
    """Tells what one writer wrote: a few records in one event, in their order."""

    def __init__(self, writer: str, publish: Callable[[Event], Awaitable[object]]) -> None:
        self._writer, self._publish = writer, publish
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._waiting: deque[WrittenRecord] = deque(maxlen=_KEPT)

    def put(self, written: WrittenRecord) -> None:
        """Take a record; from any thread."""
        self._waiting.append(written)
        self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Tell all that waits. What the bus does not take is given up, and said."""
        while self._waiting:
            first = self._waiting.popleft()
            taken = [first]
            while (
                self._waiting and len(taken) < _RECORDS and self._waiting[0].tenant == first.tenant
            ):
                taken.append(self._waiting.popleft())
            try:
                await self._publish(_event(self._writer, taken))
            except MoothallError as error:
                log.warning(
                    "the AUDIT stream was not told of records",
                    records=len(taken),
                    reason=error.message,
                )


def _event(writer: str, taken: list[WrittenRecord]) -> Event:
    last = taken[-1]
    data = {
        "tenant": last.tenant,
        "writer": writer,
        "record": dict(last.record),
        "mac": last.mac,
        "records": [dict(one.record) for one in taken[:-1]],
    }
    return write(
        EventType.AUDIT_RECORDED,
        last.tenant,
        data,
        ordinal=f"{writer}/{last.record['seq']}",
        tenant=last.tenant,
    )


async def read_told(
    events: AsyncIterable[Recorded], key: bytes, hosts: bytes = b""
) -> StreamChains:
    """Return what the stream tells of chains. What is signed neither with `key` nor with that of
    `hosts` elsewhere is passed over: others may write there.
    """
    heads: dict[tuple[str, str], dict[int, str]] = {}
    remote: dict[tuple[str, str], dict[tuple[int, str], Mapping[str, Any]]] = {}
    async for recorded in events:
        data, tenant = recorded.event.data, recorded.event.tenant
        record, writer = data.get("record"), data.get("writer")
        if (
            recorded.event.type != EventType.AUDIT_RECORDED
            or not _is_record(record)
            or not isinstance(writer, str)
        ):
            continue
        mac, path, head = (
            data.get("mac"),
            Path(tenant, writer),
            Head(int(record["seq"]), record["hash"]),
        )
        if mac == head_mac(key, path, head):
            heads.setdefault((tenant, writer), {})[head.seq] = head.hash
        elif hosts and mac == head_mac(hosts, path, head):
            known = remote.setdefault((tenant, writer), {})
            known |= {
                (one["seq"], one["hash"]): one
                for one in _vouched_records(record, data.get("records"))
            }
    return StreamChains(
        heads, {chain: [known[each] for each in sorted(known)] for chain, known in remote.items()}
    )


def _is_record(said: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has the form of a record. Who signs may be a host that was taken over, and what it
    signs anything.
    """
    if not isinstance(said, Mapping) or not all(
        isinstance(value, str | int | float) for value in said.values()
    ):
        return False
    seq = said.get("seq")  # numbers come back from JSON as they went
    whole = isinstance(seq, int | float) and seq == seq // 1 and seq >= 1
    return whole and isinstance(said.get("hash"), str) and isinstance(said.get("prev"), str)


def _vouched_records(last: Mapping[str, Any], earlier: object) -> Iterator[Mapping[str, Any]]:
    """Yield a signed record, and those told with it that it follows from."""
    yield last
    for record in reversed(earlier if isinstance(earlier, list | tuple) else ()):
        if not _is_record(record) or (record["seq"], record["hash"]) != (
            last["seq"] - 1,
            last["prev"],
        ):
            return
        yield (last := record)
