"""Sending the audit to a collector while calls run.

The chains on disk are the queue, and a file of positions says what the collector has accepted. So a
collector that is unavailable loses nothing: sending continues from the position, also after a
restart. One process of a disk sends the chains of all.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.authorization.audit_chain import head_path, read_head, read_record
from moothall.authorization.audit_export import BATCH_RECORDS, export_record
from moothall.concurrency import beside, run_in_daemon
from moothall.file_locks import lock_file, write_private
from moothall.telemetry import get_logger

log = get_logger(__name__)

_MAX_PAUSE_SECONDS = 60.0

Send = Callable[[Sequence[Mapping[str, Any]]], bool]
"""Sends a batch and returns whether it was accepted. May be called from any thread, and blocks."""


@dataclass(slots=True)
class _Chain:
    """How far a chain was read: the number of its file, and the bytes that were sent."""

    inode: int
    offset: int = 0


class AuditShipper:
    """Sends the records of all chains on this disk, those of a chain in order. A record is sent
    again until it is accepted, and may arrive twice.
    """

    def __init__(self, data_dir: Path, send: Send, every_seconds: float) -> None:
        self._root, self._send, self._every_seconds = data_dir / "audit", send, every_seconds
        self._sent: dict[str, int] = {}
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
                    self._sent = _read_positions(self._root / "sent.json")
                    self._chains.clear()
        return self._is_owner

    def _send_chain(self, path: Path) -> bool:
        """Send the new records of a chain, and return whether they were accepted."""
        name, status = f"{path.parent.name}/{path.stem}", path.stat()
        chain = self._chains.get(name)
        if chain is None:  # a restored backup may end before the position
            head = read_head(head_path(path))
            sent = self._sent.get(name, 0)
            self._sent[name] = min(sent, head.seq) if head else sent
        if chain is None or chain.inode != status.st_ino:  # retention replaces the file
            chain = self._chains[name] = _Chain(status.st_ino)
        if chain.offset == status.st_size:
            return True
        lines = _read_lines(path, chain)
        while batch := list(itertools.islice(lines, BATCH_RECORDS)):
            records = [
                export_record(path.parent.name, path.stem, record)
                for _, line in batch
                if _read_seq(line) > self._sent[name] and (record := read_record(line))
            ]
            if records:
                if not self._send(records):
                    return False
                self._sent[name] = records[-1]["seq"]
                write_private(self._root / "sent.json", json.dumps(self._sent))
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
async def shipping(
    shipper: AuditShipper, stop: Callable[[], None], seconds: float
) -> AsyncIterator[None]:
    """Send beside the block, and the rest at its end for at most `seconds`. `stop` ends a `send`
    that is under way.
    """
    try:
        async with beside(shipper.run(), "audit export"):
            yield
    finally:
        if not await run_in_daemon(shipper.finish, seconds, "audit: last export"):
            log.warning("the rest of the audit is sent at the next start", seconds=seconds)
            await asyncio.to_thread(stop)
