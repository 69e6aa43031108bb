"""An append-only record of every tool call, one hash chain a tenant and writer.

`<data_dir>/audit/<tenant>/<writer>.jsonl` holds a JSON object a line; `hash` is the sha256 of the
line without
it, and `prev` is the hash of the line before. `<writer>.head` beside it holds seq and hash of the
last one, so
that a cut end shows, signed with the key of the server; the AUDIT stream is told of both, so that
an
older head of the same chain shows too. Argument values are left out; their digest is in.

One thread writes, so that calls side by side make one chain. A record is with the operating system
when
`append` returns (kill -9 loses none) and on the disk every `sync_records` records and at the close.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from moothall.authorization.audit_chain import (
    GENESIS,
    AuditReport,
    Head,
    Problem,
    head_mac,
    head_path,
    read_head,
    read_mac,
    read_tail,
    record_hash,
    render_head,
    render_record,
    verify,
    verify_all,
)
from moothall.authorization.audit_stream import AuditPublisher, WrittenRecord
from moothall.concurrency import beside
from moothall.domain.event import Event
from moothall.domain.ids import check_id
from moothall.domain.tool import ToolStatus
from moothall.errors import AuditUnavailable, InvalidRequest
from moothall.file_locks import try_lock
from moothall.telemetry import get_logger

__all__ = ["AuditEntry", "AuditLog", "AuditReport", "Problem", "verify", "verify_all"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What is recorded at one end of a call, or in between, where an operator had allowed it:
    `approved_by` says who.
    """

    tenant: str
    principal: str
    task_id: str
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
    """Writes the chains of one writer (a process: no two may share the name). Use as async context
    manager.
    """

    def __init__(
        self,
        data_dir: Path,
        writer: str,
        *,
        sync_records: int = 64,
        key: bytes = b"",
        publish: Callable[[Event], Awaitable[object]] | None = None,
    ) -> None:
        self._root = data_dir / "audit"
        self._writer = check_id(writer, "audit writer")
        self._sync_records = sync_records
        self._key = key
        self._chains: dict[str, _Chain] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._telling = None if publish is None else AuditPublisher(writer, publish)
        self._beside = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._telling:
            await self._beside.enter_async_context(beside(self._telling.run(), "audit"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close)
        await self._beside.aclose()
        if self._telling:
            await self._telling.flush()

    async def append(self, entry: AuditEntry) -> str:
        """Return the record's id, `<writer>:<seq>`, once it is written. Raises
        `AuditUnavailable`.
        """
        return await self.submit(entry)

    def submit(self, entry: AuditEntry) -> Awaitable[str]:
        """Put the record in line at once; awaiting the answer is `append`. It is written even if
        nobody waits.
        """
        try:
            written = asyncio.wrap_future(self._thread.submit(self._write, entry))
        except RuntimeError:
            written = asyncio.get_running_loop().create_future()
            written.set_exception(AuditUnavailable("the audit is closed"))
        answer = asyncio.shield(written)
        for future in (
            written,
            answer,
        ):  # a fault that nobody waits for was logged, and the next append meets it
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    def _write(self, entry: AuditEntry) -> str:
        try:
            chain = self._chains.get(entry.tenant) or self._open(entry.tenant)
        except (OSError, InvalidRequest) as error:
            raise AuditUnavailable(f"the audit cannot be opened: {error}") from error
        try:
            written = chain.append(_fields(entry))
        except OSError as error:
            # What is on the disk is unknown now; the next record reads it again.
            del self._chains[entry.tenant]
            chain.abandon()
            log.error("audit record lost", tenant=entry.tenant, error=str(error))  # noqa: TRY400  # the caller gets it
            raise AuditUnavailable(f"the audit cannot be written: {error.strerror}") from error
        if self._telling:
            self._telling.put(WrittenRecord(entry.tenant, *written))
        return f"{self._writer}:{written[0]['seq']}"

    def _open(self, tenant: str) -> _Chain:
        folder = self._root / check_id(tenant, "tenant")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        chain = self._chains[tenant] = _Chain(
            folder / f"{self._writer}.jsonl", self._sync_records, self._key
        )
        return chain

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()


class _Chain:
    """One open file; only the writing thread touches it."""

    def __init__(self, path: Path, sync_records: int, key: bytes) -> None:
        self._path, self._key = path, key
        self._sync_records = sync_records
        self._unsynced = 0
        with ExitStack() as opened:
            self._file = _open_for(opened, path, os.O_APPEND)
            if not try_lock(self._file):
                raise AuditUnavailable(
                    f"another process writes {path}; give this one a writer name of its own"
                )
            self._head = _open_for(opened, head_path(path), 0)
            self._resume(path)
            self._files = opened.pop_all()

    def _resume(self, path: Path) -> None:
        tail = read_tail(path)
        mac = read_mac(head_path(path))
        # A file that ends before its head was cut: going on from the head keeps the gap in sight
        # for ever.
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
            # What is signed from now on must not vouch for what came before.
            self.append({"phase": "unsigned", "head_seq": head.seq, "forged": bool(mac)})

    def append(self, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Write one record and return it with what signs it as a head; an `OSError` leaves the
        chain unusable.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"seq": self._last.seq + 1, "time": time, **fields, "prev": self._last.hash}
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


def _open_for(opened: ExitStack, path: Path, flags: int) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    opened.callback(os.close, file)
    return file


def _fields(entry: AuditEntry) -> dict[str, Any]:
    # Names that a model chose are shortened: an unknown tool's may be a megabyte.
    values = ((name, getattr(entry, name)) for name in _NAMES)  # `asdict` would copy each
    told = {name: value[:300] if isinstance(value, str) else value for name, value in values}
    if not entry.approved_by:
        del told["approved_by"]
    return told


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
