"""Export of the audit: records in the form of other systems, sent to a collector while calls
run, and published to the AUDIT stream, so that truncated chains are detected.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import re
import threading
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from moothall.authorization.audit_chain import (
    Head,
    StreamChains,
    head_mac,
    head_path,
    read_head,
    read_record,
)
from moothall.concurrency import run_in_background, run_in_daemon
from moothall.domain.event import Event, EventType, Recorded
from moothall.errors import MoothallError
from moothall.processes import lock_file, write_private
from moothall.telemetry import get_logger
from moothall.telemetry.tracing import write

# Audit records for export to other systems.


BATCH_RECORDS = 128
"""Records that are sent at once. A collector accepts 4 MiB, and a record may have several KB."""


def export_record(tenant: str, writer: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its tenant and writer, which name its chain."""
    return {**record, "tenant": tenant, "writer": writer}


def read_records(
    data_dir: Path, stream: StreamChains, since: datetime, tenant: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records since `since` (UTC), by time, of all chains on this disk and of remote
    hosts in the AUDIT stream, of one `tenant` or of all. Torn and changed lines are left out.
    """
    paths = {(path.parent.name, path.stem): path for path in data_dir.glob("audit/*/*.jsonl")}
    chains: dict[tuple[str, str], Iterable[Mapping[str, Any]]] = {
        **stream.remote,
        **{chain: _read_file(path) for chain, path in paths.items()},
    }
    limit = since.isoformat(timespec="milliseconds")
    yield from heapq.merge(
        *(
            _records_since(limit, name, writer, records)
            for (name, writer), records in sorted(chains.items())
            if tenant in {None, name}
        ),
        key=lambda record: str(record["time"]),
    )


def _records_since(
    limit: str, tenant: str, writer: str, records: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    for record in records:
        if str(record["time"]) >= limit:
            yield export_record(tenant, writer, record)


def _read_file(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if (record := read_record(line.removesuffix(b"\n"))) is not None:
                yield record


# Sending the audit to a collector while calls run.
#
# The chains on disk are the queue, and a file of positions says what the collector has accepted. So
# a collector that is unavailable loses nothing: sending continues from the position, also after a
# restart. One process of a disk sends the chains of all.


log = get_logger(__name__)

_MAX_PAUSE_SECONDS = 60.0

Send = Callable[[Sequence[Mapping[str, Any]]], bool]
"""Sends a batch and returns whether it was accepted. May be called from any thread, and blocks."""


@dataclass(slots=True)
class _Chain:
    """The position of reading in a chain: the number of its file, and the bytes that were sent."""

    inode: int
    offset: int = 0


class AuditShipper:
    """Sends the records of all chains on this disk, those of a chain in order. A record is sent
    again until it is accepted, and may arrive twice.
    """

    def __init__(self, data_dir: Path, send: Send, every_seconds: float) -> None:
        self._root, self._send, self._every_seconds = data_dir / "audit", send, every_seconds
        self._sent_seqs: dict[str, int] = {}
        self._chains: dict[str, _Chain] = {}
        self._damaged: set[Path] = set()
        self._locked = ExitStack()
        self._is_owner = self._fails = False
        self._thread_lock = threading.Lock()

    async def run(self) -> None:
        """Send new records until cancelled."""
        pause = self._every_seconds
        while True:
            await asyncio.sleep(pause)
            accepted = await asyncio.to_thread(self.send_new)
            pause = self._every_seconds if accepted else min(2 * pause, _MAX_PAUSE_SECONDS)

    def send_new(self) -> bool:
        """Send all records that the collector has not accepted yet, and return whether it accepts
        them. Do nothing if another process sends those of this disk.
        """
        with self._thread_lock:
            try:
                paths = sorted(self._root.glob("*/*.jsonl")) if self._take_lock() else []
            except OSError as error:
                log.warning("the audit cannot be sent", error=repr(error))
                return False
            accepted = True
            for path in paths:
                try:
                    accepted = self._send_chain(path)
                    self._damaged.discard(path)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    if path not in self._damaged:
                        self._damaged.add(path)
                        log.warning(
                            "a chain of the audit cannot be sent", path=str(path), error=repr(error)
                        )
                if not accepted:
                    break
            if accepted == self._fails:  # a change
                self._fails = not accepted
                if accepted:
                    log.info("the collector accepts audit records again")
                else:
                    log.warning("the collector does not accept audit records; they are sent later")
            return accepted

    def finish(self) -> None:
        """Send the rest, and let another process of this disk send."""
        self.send_new()
        with self._thread_lock:
            self._is_owner = False
            self._locked.close()

    def _take_lock(self) -> bool:
        """Return whether this process sends. The first one does, until it closes or ends."""
        if not self._is_owner:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            with ExitStack() as attempt:
                self._is_owner = attempt.enter_context(lock_file(self._root / "sent.lock"))
                if self._is_owner:
                    self._locked = attempt.pop_all()
                    self._sent_seqs = _read_positions(self._root / "sent.json")
                    self._chains.clear()
        return self._is_owner

    def _send_chain(self, path: Path) -> bool:
        """Send the new records of a chain, and return whether they were accepted."""
        name, status = f"{path.parent.name}/{path.stem}", path.stat()
        chain = self._chains.get(name)
        if chain is None:  # a restored backup may end before the position
            head = read_head(head_path(path))
            sent_seq = self._sent_seqs.get(name, 0)
            self._sent_seqs[name] = min(sent_seq, head.seq) if head else sent_seq
        if chain is None or chain.inode != status.st_ino:  # retention replaces the file
            chain = self._chains[name] = _Chain(status.st_ino)
        if chain.offset == status.st_size:
            return True
        lines = _read_lines(path, chain)
        while batch := list(itertools.islice(lines, BATCH_RECORDS)):
            records = [
                export_record(path.parent.name, path.stem, record)
                for _, line in batch
                if _read_seq(line) > self._sent_seqs[name] and (record := read_record(line))
            ]
            if records:
                if not self._send(records):
                    return False
                self._sent_seqs[name] = records[-1]["seq"]
                write_private(self._root / "sent.json", json.dumps(self._sent_seqs))
            chain.offset = batch[-1][0]
        return True


def _read_lines(path: Path, chain: _Chain) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines that were not read yet, each with the offset of its end."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_ino != chain.inode:
            return  # retention has just replaced the file
        offset = chain.offset
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield offset, line[:-1]


def _read_seq(line: bytes) -> int:
    """Return the seq of a record without checking its hash, which takes longer; 0 for others."""
    match = re.match(rb'\{"seq":(\d{1,18}),', line)
    return int(match[1]) if match else 0


def _read_positions(path: Path) -> dict[str, int]:
    """Return the seq of the last accepted record by chain. Without a readable file, all is sent."""
    try:
        positions = json.loads(path.read_bytes())
        return {str(name): int(seq) for name, seq in positions.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        log.warning("the positions of the audit export are damaged; all is sent again")
        return {}


@asynccontextmanager
async def ship_in_background(
    shipper: AuditShipper, stop: Callable[[], None], seconds: float
) -> AsyncIterator[None]:
    """Send beside the block, and the rest at its end for at most `seconds`. `stop` ends a `send`
    that is under way.
    """
    try:
        async with run_in_background(shipper.run(), "audit export"):
            yield
    finally:
        if not await run_in_daemon(shipper.finish, seconds, "audit: last export"):
            log.warning("the rest of the audit is sent at the next start", seconds=seconds)
            await asyncio.to_thread(stop)


# Publishing audit records to the AUDIT stream, so that truncated chains are detected.
#
# A published head vouches for all records before it, so a record that could not be published is
# covered by the next one.


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
                    "audit records were not published to the AUDIT stream",
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
            records = remote.setdefault((tenant, writer), {})
            records |= {
                (item["seq"], item["hash"]): item
                for item in _vouched_records(record, data.get("records"))
            }
    return StreamChains(
        heads,
        {
            chain: [records[position] for position in sorted(records)]
            for chain, records in remote.items()
        },
    )


def _is_record(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value has the form of a record. A compromised host could sign anything."""
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str | int | float) for item in value.values()
    ):
        return False
    seq = value.get("seq")  # JSON does not distinguish 1 from 1.0
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
