"""An append-only record of every tool call, with one hash chain per tenant and writer; the removal
of old records from the beginning of a chain; and the latest decisions, for display.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from cachetools import LRUCache

from moothall.authorization.audit_chain import (
    GENESIS,
    AuditReport,
    Head,
    Problem,
    anchor_mac,
    head_mac,
    head_path,
    read_anchor,
    read_head,
    read_mac,
    read_record,
    read_tail,
    record_hash,
    render_anchor,
    render_head,
    render_record,
    verify,
    verify_all,
)
from moothall.authorization.audit_export import AuditPublisher, WrittenRecord
from moothall.concurrency import run_in_background
from moothall.domain.event import Channel, Event, EventType
from moothall.domain.ids import Principal, TaskId, TaskKey, check_id, own_id
from moothall.domain.tool import ToolStatus
from moothall.errors import AuditUnavailable, InvalidRequest
from moothall.ports import Log
from moothall.processes import try_lock
from moothall.telemetry import get_logger

# Retention of the audit: removal of old records from the beginning of a chain.


log = get_logger(__name__)


def prune_chain(path: Path, key: bytes, before: datetime) -> int:
    """Remove the records of a chain that are older than `before` (UTC), and return their number. An
    anchor replaces them, and the last record always stays. Leave a chain unchanged while a process
    writes it, or if its old records are broken, because they are evidence.
    """
    with path.open("r+b") as file:
        if not try_lock(file.fileno()):
            return 0
        first, last, offset = _find_cut(path, file, key, before)
        if last.seq == first.seq:
            return 0
        file.seek(offset)
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            target.write(render_anchor(key, path, last) + b"\n")
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())
        new.replace(path)  # while the old file is locked, so that no writer continues it
    return last.seq - first.seq


def _find_cut(path: Path, file: BinaryIO, key: bytes, before: datetime) -> tuple[Head, Head, int]:
    """Return the head before the file's first record, the head of the last record to remove, and
    the offset of the record after it. Both heads are the same if there is nothing to remove.
    """
    first = Head(0, GENESIS)
    limit = before.isoformat(timespec="milliseconds")
    offset = 0
    line = file.readline()
    if anchor := read_anchor(line):
        first = anchor.last
        if key and not hmac.compare_digest(
            anchor.mac.encode(), anchor_mac(key, path, first).encode()
        ):
            return _refuse(path, first)
        offset += len(line)
        line = file.readline()
    last, cut_head, cut_offset = first, first, offset
    while line:
        record = read_record(line.removesuffix(b"\n"))
        if record is not None:  # a line torn by a crash counts as removed with the record after it
            if (record["seq"], record["prev"]) != (last.seq + 1, last.hash):
                return _refuse(path, first)
            cut_head, cut_offset = last, offset
            if record["time"] >= limit:
                break
            last = Head(record["seq"], record["hash"])
        offset += len(line)
        line = file.readline()
    return first, cut_head, cut_offset


def _refuse(path: Path, first: Head) -> tuple[Head, Head, int]:
    log.warning("old audit records are kept because their chain is broken", path=str(path))
    return first, first, 0


# An append-only record of every tool call, with one hash chain per tenant and writer.
#
# `<data_dir>/audit/<tenant>/<writer>.jsonl` holds one JSON object per line. `hash` is the sha256 of
# the line without it, and `prev` is the hash of the previous line. `<writer>.head` holds seq and
# hash of the last record, signed with the key of the server, so that a truncated file is detected.
# The AUDIT stream records both, so that an older head of the same chain is detected too. Argument
# values are left out; their digest is included.
#
# A single thread writes, so that concurrent calls form one chain. When `append` returns, the
# operating system has the record (kill -9 loses none). It is synced to disk every `sync_records`
# records and on close.


__all__ = ["AuditEntry", "AuditLog", "AuditReport", "Problem", "verify", "verify_all"]


_DAY_SECONDS = 86400.0
_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 1.0, 0.02


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A record of the start or the end of a call. An `approved` entry between them names the
    operator who allowed the call: `approved_by`. `task_id` is the key of the task; in a tool
    session, the name of its workspace.
    """

    tenant: str
    principal: str
    task_id: TaskKey
    seat: str
    request_id: str
    tool: str
    arguments_digest: str
    phase: Literal["start", "approved", "finish"] = "start"
    status: ToolStatus | Literal[""] = ""
    duration_ms: int = 0
    approved_by: str = ""


_NAMES = tuple(field.name for field in fields(AuditEntry))


class AuditLog:
    """Writer of the chains of one process. No two processes may share a writer name. Use as async
    context manager.

    keep_days: older records of all chains on this disk are removed at the start and once a day.
    """

    def __init__(
        self,
        data_dir: Path,
        writer: str,
        *,
        sync_records: int = 64,
        key: bytes = b"",
        publish: Callable[[Event], Awaitable[object]] | None = None,
        keep_days: int | None = None,
    ) -> None:
        self._keep_days = keep_days
        self._root = data_dir / "audit"
        self._writer = check_id(writer, "audit writer")
        self._sync_records = sync_records
        self._key = key
        self._chains: dict[str, _Chain] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._publisher = None if publish is None else AuditPublisher(writer, publish)
        self._background_tasks = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._publisher:
            await self._background_tasks.enter_async_context(
                run_in_background(self._publisher.run(), "audit")
            )
        if self._keep_days is not None:
            await self._background_tasks.enter_async_context(
                run_in_background(self._prune_daily(self._keep_days), "audit retention")
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close_chains)
        await self._background_tasks.aclose()
        if self._publisher:
            await self._publisher.flush()

    async def append(self, entry: AuditEntry) -> str:
        """Write a record and return its id, `<writer>:<seq>`. Raises `AuditUnavailable`."""
        return await self.submit(entry)

    def submit(self, entry: AuditEntry) -> Awaitable[str]:
        """Queue the record at once and return an awaitable of its id. The record is written even if
        nobody awaits.
        """
        try:
            written = asyncio.wrap_future(self._thread.submit(self._write_record, entry))
        except RuntimeError:
            written = asyncio.get_running_loop().create_future()
            written.set_exception(AuditUnavailable("the audit is closed"))
        record_id = asyncio.shield(written)
        # An error that nobody awaits is already logged, and the next append raises it again.
        for future in (written, record_id):
            future.add_done_callback(lambda finished: finished.cancelled() or finished.exception())
        return record_id

    def _write_record(self, entry: AuditEntry) -> str:
        try:
            chain = self._chains.get(entry.tenant) or self._open_chain(entry.tenant)
        except (OSError, InvalidRequest) as error:
            raise AuditUnavailable(f"the audit cannot be opened: {error}") from error
        try:
            written = chain.append(_fields(entry))
        except OSError as error:
            # The state of the file is unknown now, so the next record opens it again.
            del self._chains[entry.tenant]
            chain.abandon()
            log.error("audit record lost", tenant=entry.tenant, error=str(error))  # noqa: TRY400  # the caller gets it
            raise AuditUnavailable(f"the audit cannot be written: {error.strerror}") from error
        if self._publisher:
            self._publisher.put(WrittenRecord(entry.tenant, *written))
        return f"{self._writer}:{written[0]['seq']}"

    def _open_chain(self, tenant: str) -> _Chain:
        folder = self._root / check_id(tenant, "tenant")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        chain = self._chains[tenant] = _Chain(
            folder / f"{self._writer}.jsonl", self._sync_records, self._key
        )
        return chain

    async def _prune_daily(self, keep_days: int) -> None:
        while True:
            with suppress(RuntimeError):  # the audit is being closed
                await asyncio.wrap_future(self._thread.submit(self._prune, keep_days))
            await asyncio.sleep(_DAY_SECONDS)

    def _prune(self, keep_days: int) -> None:
        """Prune all chains. This runs in the writing thread. It closes its own chains, and the next
        record opens them again.
        """
        before = datetime.now(UTC) - timedelta(days=keep_days)
        try:
            while self._chains:
                self._chains.popitem()[1].close()
            pruned = sum(
                prune_chain(path, self._key, before) for path in self._root.glob("*/*.jsonl")
            )
        except OSError as error:
            log.warning("old audit records cannot be removed", error=str(error))
            return
        if pruned:
            log.info("old audit records were removed", records=pruned, days=keep_days)

    def _close_chains(self) -> None:
        self._thread.shutdown(wait=True)
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()


class _Chain:
    """One open chain file. Only the writing thread uses it."""

    def __init__(self, path: Path, sync_records: int, key: bytes) -> None:
        self._path, self._key = path, key
        self._sync_records = sync_records
        self._unsynced = 0
        with ExitStack() as stack:
            self._file = _open_locked(stack, path)
            self._head = _open_for(stack, head_path(path), 0)
            self._resume(path)
            self._files = stack.pop_all()

    def _resume(self, path: Path) -> None:
        tail = read_tail(path)
        mac = read_mac(head_path(path))
        # A file that ends before its head was truncated. Continuing from the head keeps the gap
        # visible.
        head = read_head(head_path(path)) or Head(0, GENESIS)
        self._last = head if head.seq > tail.last.seq else tail.last
        if self._last != tail.last:
            log.warning(
                "audit ends before its head", path=str(path), last=tail.last.seq, head=head.seq
            )
        self._before = b"\n" if tail.unended else b""
        if tail.torn is not None:
            log.warning("audit had a torn last record", path=str(path), bytes=len(tail.torn))
            self.append(
                {"phase": "torn", "torn_bytes": len(tail.torn), "torn_sha256": tail.torn_sha256}
            )
        if (
            self._key
            and head.seq
            and not (mac and hmac.compare_digest(mac, head_mac(self._key, path, head)))
        ):
            # Later signatures must not vouch for the records before this one.
            self.append({"phase": "unsigned", "head_seq": head.seq, "forged": bool(mac)})

    def append(self, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Write one record. Return it and its signature as a head. After an `OSError` the chain is
        unusable.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"seq": self._last.seq + 1, "time": now, **fields, "prev": self._last.hash}
        record["hash"] = record_hash(record)
        _write_all(self._file, self._before + render_record(record) + b"\n")
        self._before = b""
        self._last = Head(record["seq"], record["hash"])
        mac = head_mac(self._key, self._path, self._last) if self._key else ""
        os.pwrite(self._head, render_head(self._last, mac), 0)
        self._unsynced += 1
        if self._unsynced >= self._sync_records:
            self._sync()
        return record, mac

    def _sync(self) -> None:
        os.fsync(self._file)
        os.fsync(self._head)
        self._unsynced = 0

    def close(self) -> None:
        """Sync and close."""
        try:
            self._sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a sync."""
        self._files.close()


def _open_locked(stack: ExitStack, path: Path) -> int:
    """Open and lock a chain for appending. Retry briefly, because pruning locks and replaces it."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        with ExitStack() as attempt:
            file = _open_for(attempt, path, os.O_APPEND)
            locked = try_lock(file)
            if locked and path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                stack.push(attempt.pop_all())
                return file
        if not locked and time.monotonic() > until:
            raise AuditUnavailable(
                f"another process writes {path}; give this one a writer name of its own"
            )
        time.sleep(_LOCK_PAUSE_SECONDS)


def _open_for(stack: ExitStack, path: Path, flags: int) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    stack.callback(os.close, file)
    return file


def _fields(entry: AuditEntry) -> dict[str, Any]:
    # Names chosen by a model are shortened, because they can have any length.
    values = ((name, getattr(entry, name)) for name in _NAMES)  # `asdict` would copy each
    record = {name: value[:300] if isinstance(value, str) else value for name, value in values}
    if not entry.approved_by:
        del record["approved_by"]
    return record


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


# The latest decisions of the gateway from the AUDIT stream, for display. `moothall audit verify`
# checks the chain itself.


REFUSALS = frozenset({"blocked", "parked", "rate_limited", "invalid", "alert"})
"""The statuses of refused calls and of alerts."""
_MAX_DECISIONS, _MAX_TENANTS, _MAX_TEXT_CHARS = 200, 100, 500


@dataclass(frozen=True, slots=True)
class Decision:
    """A finished tool call or one that an operator allowed, with its `ToolStatus`; or an alert.
    `time` is RFC 3339, or empty if unknown.
    """

    time: str
    status: str
    tool: str
    principal: str
    task_id: TaskId
    seat: str
    reason: str = ""

    @property
    def refused(self) -> bool:
        """Whether the gateway refused the call or raised an alert."""
        return self.status in REFUSALS


@dataclass(slots=True)
class _TenantDecisions:
    seq: int = 0
    last: deque[Decision] = field(default_factory=lambda: deque(maxlen=_MAX_DECISIONS))


class Decisions:
    """The last 200 decisions of each recently requested tenant. The first request reads the
    tenant's whole stream, later ones only new events.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tenants: LRUCache[str, _TenantDecisions] = LRUCache(_MAX_TENANTS)
        self._reading = asyncio.Lock()

    async def last(self, principal: Principal) -> Sequence[Decision]:
        """Return a tenant's decisions, latest first."""
        async with self._reading:
            decisions = self._tenants.get(principal.tenant) or _TenantDecisions()
            async for recorded in self._log.replay(
                (Channel.AUDIT.of(principal.tenant),), decisions.seq
            ):
                decisions.seq = recorded.seq
                if recorded.event.tenant == principal.tenant:
                    decisions.last.extend(_decisions_in(recorded.event, principal.tenant))
            self._tenants[principal.tenant] = decisions
            return tuple(reversed(decisions.last))


def _decisions_in(event: Event, tenant: str) -> Iterable[Decision]:
    """Return the decisions in an event. Malformed records are skipped, because others write to the
    stream too.
    """
    data = event.data
    if event.type is EventType.GUARD_ALERTED:
        summary = (
            f"{data.get('count', '')} {data.get('kind', '')}; the last: {data.get('reason', '')}"
        )
        yield _decision(data, event.time, "alert", tenant, summary)
    elif event.type is EventType.AUDIT_RECORDED:
        earlier = data.get("records")
        for record in (*(earlier if isinstance(earlier, list | tuple) else ()), data.get("record")):
            if isinstance(record, Mapping) and record.get("phase") in {"approved", "finish"}:
                approver = record.get("approved_by")
                status = str(record.get("status") or record.get("phase"))
                yield _decision(
                    record,
                    str(record.get("time") or ""),
                    status,
                    tenant,
                    f"allowed by {approver}" if approver else "",
                )


def _decision(
    record: Mapping[str, Any], time: str, status: str, tenant: str, summary: str
) -> Decision:
    fields = {
        name: str(record.get(name) or "")[:_MAX_TEXT_CHARS]
        for name in ("tool", "principal", "task_id", "seat")
    }
    return Decision(
        time[:40],
        status[:40],
        fields["tool"],
        fields["principal"],
        own_id(TaskKey(fields["task_id"]), tenant),
        fields["seat"],
        summary[:_MAX_TEXT_CHARS],
    )
