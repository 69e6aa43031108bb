"""The format of audit chains on disk, and their verification.

The first line of a pruned chain is an anchor: seq and hash of the last record that was pruned,
signed with the key of heads. The remaining records follow from it.

Verification detects changed, removed, inserted, reordered and cut-off records. It cannot detect a
change by somebody who knows the key that signs heads, or who restores an older head of the same
chain and also removes the newer ones from the AUDIT stream.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moothall.domain.text import HOLE

GENESIS = "0" * 64
_HEAD_BYTES = 256
_MAX_LINE = 65536


@dataclass(frozen=True, slots=True)
class Head:
    """The last record: its seq (from 1; 0 before the first) and hash."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """The end of the pruned part: its last record, with a signature or an empty string."""

    last: Head
    mac: str


@dataclass(frozen=True, slots=True)
class StreamChains:
    """The records of chains in the AUDIT stream, by tenant and writer. `heads`: hashes by seq, of
    chains on this disk. `remote`: ordered records of chains that hosts write to their own disks.
    """

    heads: Mapping[tuple[str, str], Mapping[int, str]] = field(default_factory=dict)
    remote: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainTail:
    """The end of a file: its last complete record, the bytes of a torn one after it, and whether
    the final newline is missing.
    """

    last: Head
    torn: bytes | None
    unended: bool

    @property
    def torn_sha256(self) -> str:
        """Hash of the torn bytes."""
        return hashlib.sha256(self.torn or b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a chain. `line` counts from 1. `serious` is False for traces of a crash."""

    path: Path
    line: int
    message: str
    serious: bool = True


@dataclass(frozen=True, slots=True)
class Approved:
    """A call that ran because an operator allowed it."""

    time: str
    tenant: str
    tool: str
    request_id: str
    principal: str
    by: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result for all chains under a data directory and those of remote hosts. `unfinished`
    counts calls with a start and no end: running ones, and those that a crash ended. `pruned`
    counts older records that retention removed.
    """

    chains: int
    records: int
    problems: tuple[Problem, ...]
    unfinished: int
    approved: tuple[Approved, ...]
    pruned: int = 0

    @property
    def ok(self) -> bool:
        """Whether no chain was tampered with."""
        return not any(problem.serious for problem in self.problems)


def record_hash(record: dict[str, Any]) -> str:
    """Return the hash of a record without its own `hash`."""
    raw = {name: value for name, value in record.items() if name != "hash"}
    return hashlib.sha256(
        json.dumps(raw, sort_keys=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()


def render_record(record: dict[str, Any]) -> bytes:
    """Return the record as a line, without the newline."""
    return json.dumps(record, separators=(",", ":")).encode("ascii")


def head_path(path: Path) -> Path:
    """Return the path of a chain's head."""
    return path.with_suffix(".head")


def render_head(head: Head, mac: str) -> bytes:
    """Return the head as a line of fixed width, so that one write replaces it. `mac` is empty for
    an unsigned head.
    """
    document = {"seq": head.seq, "hash": head.hash} | ({"mac": mac} if mac else {})
    return json.dumps(document).encode("ascii").ljust(_HEAD_BYTES - 1) + b"\n"


def head_mac(key: bytes, path: Path, head: Head) -> str:
    """Return the signature of the head of the chain at `path`. It depends on writer, tenant and
    seq.
    """
    text = f"moothall audit head\0{path.parent.name}/{path.stem}\0{head.seq}\0{head.hash}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def render_anchor(key: bytes, path: Path, last: Head) -> bytes:
    """Return the first line of a pruned chain, without the newline. `last` was pruned."""
    mac = {"mac": anchor_mac(key, path, last)} if key else {}
    return json.dumps({"pruned": last.seq, "hash": last.hash, **mac}).encode("ascii")


def anchor_mac(key: bytes, path: Path, last: Head) -> str:
    """Return the signature of an anchor. It depends on writer, tenant and seq."""
    text = f"moothall audit pruned\0{path.parent.name}/{path.stem}\0{last.seq}\0{last.hash}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def read_anchor(line: bytes) -> Anchor | None:
    """Parse the anchor of a pruned chain. Returns None for any other line."""
    try:
        data = json.loads(line)
        return Anchor(Head(int(data["pruned"]), str(data["hash"])), str(data.get("mac", "")))
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def read_mac(path: Path) -> str:
    """Return the signature of a head, or an empty string."""
    try:
        mac = json.loads(path.read_bytes()).get("mac", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return mac if isinstance(mac, str) else ""


def read_head(path: Path) -> Head | None:
    """Return the head, or None if it is missing or malformed."""
    try:
        data = json.loads(path.read_bytes())
        return Head(int(data["seq"]), str(data["hash"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def read_record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line, or None unless its hash is right."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("seq"), int)
        or not isinstance(record.get("prev"), str)
    ):
        return None
    # Compared byte for byte, so that no extra space, escape or duplicate key is accepted.
    return (
        record
        if record.get("hash") == record_hash(record) and render_record(record) == line
        else None
    )


def read_tail(path: Path) -> ChainTail:
    """Return how the file ends. A missing file is an empty chain."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 2 * _MAX_LINE))
            content = file.read()
    except FileNotFoundError:
        return ChainTail(Head(0, GENESIS), None, unended=False)
    unended = bool(content) and not content.endswith(b"\n")
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    torn = None
    if unended and read_record(lines[-1]) is None:
        torn = lines.pop()
    for line in reversed(lines):
        record = read_record(line)
        if record is not None:
            return ChainTail(Head(record["seq"], record["hash"]), torn, unended)
    return ChainTail(Head(0, GENESIS), torn, unended)


def verify(path: Path, key: bytes = b"") -> tuple[Problem, ...]:
    """Return all problems of one chain, in order. Without `key`, head signatures are not
    checked.
    """
    return tuple(_ChainReader(path, key).problems())


def verify_all(
    data_dir: Path, key: bytes = b"", stream: StreamChains = StreamChains(), hosts: bytes = b""
) -> AuditReport:
    """Check every chain of every tenant under a data directory, and the remote ones in the AUDIT
    stream. `key` as for `verify`; `hosts` is the key of hosts on other machines.
    """
    root = data_dir / "audit"
    paths = sorted(
        {*root.glob("*/*.jsonl"), *(head.with_suffix(".jsonl") for head in root.glob("*/*.head"))}
        | {root / tenant / f"{writer}.jsonl" for tenant, writer in stream.heads}
    )
    readings = [
        _ChainReader(path, key, stream.heads.get((path.parent.name, path.stem), {}), hosts)
        for path in paths
    ]
    local_chains = {(path.parent.name, path.stem) for path in paths}
    readings += [
        _RemoteChainReader(Path("the bus", tenant, writer), records)
        for (tenant, writer), records in sorted(stream.remote.items())
        if (tenant, writer) not in local_chains
    ]
    problems = tuple(problem for reading in readings for problem in reading.problems())
    return AuditReport(
        chains=len(readings),
        records=sum(reading.records for reading in readings),
        problems=problems,
        unfinished=sum(reading.open.total() for reading in readings),
        approved=tuple(
            sorted(
                (call for reading in readings for call in reading.approved),
                key=lambda call: call.time,
            )
        ),
        pruned=sum(reading.pruned for reading in readings),
    )


class _ChainReader:
    """One pass over a chain."""

    def __init__(
        self,
        path: Path,
        key: bytes,
        stream_hashes: Mapping[int, str] = MappingProxyType({}),
        hosts: bytes = b"",
    ) -> None:
        self.path = path
        self._key, self._hosts = key, hosts
        self._stream_hashes = stream_hashes
        self.records = self.pruned = 0
        self.open: Counter[tuple[str, ...]] = Counter()
        self.approved: list[Approved] = []
        self._last = Head(0, GENESIS)
        self._line = 0
        self._at_head: str | None = None

    def problems(self) -> Iterator[Problem]:
        head = read_head(head_path(self.path))
        torn_line: bytes | None = None
        for line in self._read_lines():
            self._line += 1
            if self._line == 1 and (anchor := read_anchor(line)):
                yield from self._check_anchor(anchor)
                continue
            record = read_record(line)
            if torn_line is not None:
                yield self._torn_problem(torn_line, record)
                torn_line = None
            if record is None:
                torn_line = line
                continue
            yield from self._check_record(record)
            if head is not None and record["seq"] == head.seq:
                self._at_head = record["hash"]
        if torn_line is not None:
            self._line += 1
            yield self._torn_problem(torn_line, None, at_end=True)
        yield from self._check_end(head)

    def _read_lines(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")

    def _check_anchor(self, anchor: Anchor) -> Iterator[Problem]:
        self._last, self.pruned = anchor.last, anchor.last.seq
        if self._key and not self._is_signed(
            anchor.mac, lambda key: anchor_mac(key, self.path, anchor.last)
        ):
            yield self._problem(
                f"the anchor of the {self.pruned} pruned records is not signed with this key: "
                "records may have been removed or made up"
            )
        if self._stream_hashes.get(anchor.last.seq, anchor.last.hash) != anchor.last.hash:
            yield self._problem(
                f"pruned record {anchor.last.seq} differs from the one in the AUDIT stream"
            )

    def _check_record(self, record: dict[str, Any]) -> Iterator[Problem]:
        if record["seq"] != self._last.seq + 1:
            yield self._problem(
                f"record {record['seq']} follows record {self._last.seq}: removed, reordered "
                "or inserted"
            )
        elif record["prev"] != self._last.hash:
            yield self._problem(f"record {record['seq']} does not follow from the one before it")
        self._last = Head(record["seq"], record["hash"])
        self.records += 1
        if self._stream_hashes.get(record["seq"], record["hash"]) != record["hash"]:
            yield self._problem(f"record {record['seq']} differs from the one in the AUDIT stream")
        if record.get("phase") in {"start", "finish"}:
            call = tuple(str(record.get(name)) for name in ("task_id", "seat", "request_id"))
            self.open[call] += 1 if record["phase"] == "start" else -1
            if self.open[call] <= 0:  # below 0 if the start was pruned
                del self.open[call]
        elif record.get("phase") == "unsigned":
            reason = "signed with another key" if record.get("forged") else "not signed"
            text = (
                f"the head before record {record['seq']} was {reason}: records may have been cut "
                "off there"
            )
            yield Problem(self.path, self._line, text, serious=bool(record.get("forged")))
        elif record.get("phase") == "approved":
            values = [
                str(record.get(name))
                for name in ("time", "tenant", "tool", "request_id", "principal", "approved_by")
            ]
            self.approved.append(Approved(*values))

    def _torn_problem(
        self, torn_line: bytes, after: dict[str, Any] | None, *, at_end: bool = False
    ) -> Problem:
        line = self._line - 1
        marked = after is not None and after.get("phase") == "torn"
        if (
            marked
            and after is not None
            and after.get("torn_sha256") == hashlib.sha256(torn_line).hexdigest()
        ):
            return Problem(
                self.path,
                line,
                "a record was torn by a crash; the chain notes it and continues",
                serious=False,
            )
        text = (
            "the last record is torn or changed"
            if at_end
            else "a record was changed: its hash is wrong"
        )
        return Problem(self.path, line, text)

    def _check_end(self, head: Head | None) -> Iterator[Problem]:
        if head is None:
            if self.records:
                yield self._problem(
                    "the head file is missing or unreadable: records may be cut off"
                )
        elif head.seq > self._last.seq:
            yield self._problem(
                f"ends at record {self._last.seq}, the head says {head.seq}: records were cut off"
            )
        elif head.seq and self._at_head != head.hash:
            yield self._problem(f"record {head.seq} differs from the one in the head")
        if head is not None and self._key:
            yield from self._check_signature(head)
        if (newest := max(self._stream_hashes, default=0)) > self._last.seq:
            yield self._problem(
                f"ends at record {self._last.seq}, the AUDIT stream has {newest}: records "
                "were cut off, or an older file put back"
            )

    def _check_signature(self, head: Head) -> Iterator[Problem]:
        mac = read_mac(head_path(self.path))
        if not mac:
            text = "the head is not signed, as before heads were: records may be cut off"
            yield Problem(self.path, self._line, text, serious=False)
        elif not self._is_signed(mac, lambda key: head_mac(key, self.path, head)):
            yield self._problem(
                "the head is not signed with this key: records may be cut off or made up"
            )

    def _is_signed(self, mac: str, sign: Callable[[bytes], str]) -> bool:
        keys = (key for key in (self._key, self._hosts) if key)
        return any(hmac.compare_digest(mac.encode(), sign(key).encode()) for key in keys)

    def _problem(self, text: str) -> Problem:
        return Problem(self.path, self._line, text)


class _RemoteChainReader(_ChainReader):
    """One pass over the records that the AUDIT stream has of a chain on another disk."""

    def __init__(self, path: Path, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(path, b"")
        self._records = records

    def problems(self) -> Iterator[Problem]:
        for stored in self._records:
            record = dict(stored)
            self._line = record["seq"]
            if record["seq"] > self._last.seq + 1:
                text = (
                    f"the stream lacks records {self._last.seq + 1} to "
                    f"{record['seq'] - 1}: they are with the host that wrote them, or were pruned"
                )
                yield Problem(self.path, self._line, text, serious=False)
                self._last = Head(record["seq"] - 1, record["prev"])
            if record["hash"] != record_hash(record):
                left_out = HOLE in json.dumps(record)
                text = (
                    "possible secrets were removed, so its hash cannot be checked"
                    if left_out
                    else "a record was changed: its hash is wrong"
                )
                yield Problem(self.path, self._line, text, serious=not left_out)
            yield from self._check_record(record)
