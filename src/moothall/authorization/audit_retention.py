"""Retention of the audit: removal of old records from the beginning of a chain."""

from __future__ import annotations

import hmac
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from moothall.authorization.audit_chain import (
    GENESIS,
    Head,
    anchor_mac,
    read_anchor,
    read_record,
    render_anchor,
)
from moothall.file_locks import try_lock
from moothall.telemetry import get_logger

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
    last, cut, cut_offset = first, first, offset
    while line:
        record = read_record(line.removesuffix(b"\n"))
        if record is not None:  # a line torn by a crash counts as removed with the record after it
            if (record["seq"], record["prev"]) != (last.seq + 1, last.hash):
                return _refuse(path, first)
            cut, cut_offset = last, offset
            if record["time"] >= limit:
                break
            last = Head(record["seq"], record["hash"])
        offset += len(line)
        line = file.readline()
    return first, cut, cut_offset


def _refuse(path: Path, first: Head) -> tuple[Head, Head, int]:
    log.warning("old audit records are kept because their chain is broken", path=str(path))
    return first, first, 0
