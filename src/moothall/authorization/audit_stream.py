"""Publishing audit records to the AUDIT stream, so that truncated chains are detected.

A published head vouches for all records before it, so a record that could not be published is
covered by the next one.
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
_MAX_EVENT_RECORDS = 64
_MAX_WAITING = 10_000  # while the bus is unreachable


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record of a tenant's chain and its signature as a head."""

    tenant: str
    record: Mapping[str, Any]
    mac: str


class AuditPublisher:
    """Publisher of one writer's records, a few per event, in order."""

    def __init__(self, writer: str, publish: Callable[[Event], Awaitable[object]]) -> None:
        self._writer, self._publish = writer, publish
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._waiting: deque[WrittenRecord] = deque(maxlen=_MAX_WAITING)

    def put(self, written: WrittenRecord) -> None:
        """Queue a record. Can be called from any thread."""
        self._waiting.append(written)
        self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Publish all waiting records. A batch that the bus refuses is dropped with a warning."""
        while self._waiting:
            first = self._waiting.popleft()
            batch = [first]
            while (
                self._waiting
                and len(batch) < _MAX_EVENT_RECORDS
                and self._waiting[0].tenant == first.tenant
            ):
                batch.append(self._waiting.popleft())
            try:
                await self._publish(_batch_event(self._writer, batch))
            except MoothallError as error:
                log.warning(
                    "the AUDIT stream was not told of records",
                    records=len(batch),
                    reason=error.message,
                )


def _batch_event(writer: str, batch: list[WrittenRecord]) -> Event:
    last = batch[-1]
    data = {
        "tenant": last.tenant,
        "writer": writer,
        "record": dict(last.record),
        "mac": last.mac,
        "records": [dict(record.record) for record in batch[:-1]],
    }
    return write(
        EventType.AUDIT_RECORDED,
        last.tenant,
        data,
        ordinal=f"{writer}/{last.record['seq']}",
        tenant=last.tenant,
    )


async def read_stream_chains(
    events: AsyncIterable[Recorded], key: bytes, hosts: bytes = b""
) -> StreamChains:
    """Return the chains in the stream. Records signed with neither `key` nor the key of remote
    `hosts` are ignored, because others can write to the stream.
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
                (item["seq"], item["hash"]): item
                for item in _vouched_records(record, data.get("records"))
            }
    return StreamChains(
        heads,
        {chain: [known[position] for position in sorted(known)] for chain, known in remote.items()},
    )


def _is_record(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value has the form of a record. A compromised host could sign anything."""
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str | int | float) for item in value.values()
    ):
        return False
    seq = value.get("seq")  # JSON does not tell 1 from 1.0
    valid_seq = isinstance(seq, int | float) and seq == seq // 1 and seq >= 1
    return valid_seq and isinstance(value.get("hash"), str) and isinstance(value.get("prev"), str)


def _vouched_records(last: Mapping[str, Any], earlier: object) -> Iterator[Mapping[str, Any]]:
    """Yield a signed record, then the preceding records that its hash covers."""
    yield last
    for record in reversed(earlier if isinstance(earlier, list | tuple) else ()):
        if not _is_record(record) or (record["seq"], record["hash"]) != (
            last["seq"] - 1,
            last["prev"],
        ):
            return
        yield (last := record)
