"""Stored messages in raw form: dead letters, and the detection of lost records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from moothall.domain.event import Channel
from moothall.domain.ids import TaskKey
from moothall.errors import NotFound
from moothall.events.delivery import Bury
from moothall.events.registry import DEAD, EVENTS, subject

# Stored messages in raw form, for dead letters and pruning.


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
    """The state of a stream."""

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


# Dead letters: messages that failed for good, stored with the reason for inspection and replay.


PREFIX = "dead."
_MAX_REASON_CHARS = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed for good: its origin, the reason, and its unchanged bytes."""

    seq: int
    subject: str
    stream: str
    consumer: str
    original_seq: int
    deliveries: int
    code: str
    reason: str
    time: datetime
    data: bytes


@dataclass(frozen=True, slots=True)
class LetterOrigin:
    """The stream, subject and consumer of a message that failed for good."""

    stream: str
    consumer: str
    subject: str
    seq: int
    deliveries: int


async def store_dead_letter(
    store: RawStore, origin: LetterOrigin, data: bytes, verdict: Bury
) -> None:
    """Store the dead letter of a message, once. Its body is the message's bytes, unchanged."""
    headers = {
        "Moothall-Subject": origin.subject,
        "Moothall-Stream": origin.stream,
        "Moothall-Consumer": origin.consumer,
        "Moothall-Seq": str(origin.seq),
        "Moothall-Deliveries": str(origin.deliveries),
        "Moothall-Code": verdict.code,
        "Moothall-Reason": json.dumps(
            verdict.reason[:_MAX_REASON_CHARS]
        ),  # one line of ASCII, as headers must be
    }
    message_id = f"dead:{origin.stream}:{origin.seq}:{origin.consumer}"
    await store.put_raw(f"{PREFIX}{origin.subject}", data, headers, message_id=message_id)


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _parse_reason(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _parse_letter(raw: Raw) -> DeadLetter:
    headers = raw.headers
    return DeadLetter(
        seq=raw.seq,
        subject=headers.get("Moothall-Subject", raw.subject.removeprefix(PREFIX)),
        stream=headers.get("Moothall-Stream", ""),
        consumer=headers.get("Moothall-Consumer", ""),
        original_seq=_parse_number(headers.get("Moothall-Seq", "")),
        deliveries=_parse_number(headers.get("Moothall-Deliveries", "")),
        code=headers.get("Moothall-Code", ""),
        reason=_parse_reason(headers.get("Moothall-Reason", '""')),
        time=raw.time,
        data=raw.data,
    )


async def letters(store: RawStore) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, oldest first."""
    async for raw in store.raw(DEAD.name):
        yield _parse_letter(raw)


async def replay(store: RawStore, seq: int) -> int:
    """Send the message of a dead letter again on its own subject, and delete the letter. Returns
    the new seq.

    The message gets a new id on the bus, which would otherwise treat it as a repeat. The event in
    it keeps its own id, by which readers recognise it. Raises `NotFound`.
    """
    async for raw in store.raw(DEAD.name, after_seq=seq - 1):
        if raw.seq != seq:
            break
        letter = _parse_letter(raw)
        new_seq = await store.put_raw(
            letter.subject, letter.data, message_id=f"replay:{seq}:{raw.time.isoformat()}"
        )
        await store.delete_raw(DEAD.name, seq)
        return new_seq
    raise NotFound(f"there is no dead letter {seq}")


# Detects lost records of the log: a bus silently skips records that it can no longer read.
#
# A record with a wrong checksum shows as a gap in the sequence when the log is read. A record that
# was removed on purpose leaves a gap too, but the bus knows about it. A truncated end is detected
# by comparison with the last seq of the previous check, which is stored outside the bus.


_MAX_LISTED = 1000  # missing seqs that are listed individually
_END_PREFIX = subject(Channel.RESPONSES.all).removesuffix("*")
_DELIBERATION_PREFIXES = (_END_PREFIX, subject(Channel.RESULTS.all).removesuffix("*"))


@dataclass(slots=True)
class _Span:
    """The seqs of a deliberation's first and last record; `ended`: its end was found."""

    first: int
    last: int
    ended: bool = False

    def may_lack(self, seq: int) -> bool:
        """Return whether a record missing at `seq` may belong to the deliberation."""
        return self.first < seq and (seq < self.last or not self.ended)


@dataclass(frozen=True, slots=True)
class LogReport:
    """The result of a check. `missing` holds the first of the `lost` seqs. `expected_last` is the
    last seq at the previous check, `last` the current one. `concerned` maps each deliberation to
    which a missing record may belong to the seqs in question.
    """

    records: int
    last: int
    expected_last: int
    lost: int
    missing: tuple[int, ...]
    concerned: dict[TaskKey, tuple[int, ...]]

    @property
    def cut(self) -> int:
        """The number of records that are missing at the end."""
        return max(0, self.expected_last - self.last)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not (self.lost or self.cut)

    def __str__(self) -> str:
        """Describe in one line what is missing."""
        if self.is_complete:
            return f"the log is complete: {self.records} records up to seq {self.last}"
        seqs = ", ".join(map(str, self.missing[:8])) + (
            ", …" if self.lost > len(self.missing[:8]) else ""
        )
        parts = [f"{self.lost} can no longer be read (seq {seqs})"] if self.lost else []
        parts += (
            [f"it ends at seq {self.last} and previously ended at {self.expected_last}"]
            if self.cut
            else []
        )
        return (
            f"the log is NOT complete: {'; '.join(parts)}; {len(self.concerned)} deliberations may "
            "lack records. Its files were changed or its disk is failing. Stop the server and "
            "restore a backup of the data directory"
        )


async def check_log(store: RawStore, expected_last: int = 0) -> LogReport:
    """Read the whole log and report what is missing; `expected_last` is the last seq that was seen
    earlier.
    """
    state = await store.state(EVENTS.name)
    spans: dict[TaskKey, _Span] = {}
    holes: list[range] = []
    records, expected = 0, max(state.first_seq, 1)
    async for raw in store.raw(EVENTS.name):
        if raw.seq > state.last_seq:
            break
        if raw.seq > expected and records:  # a gap before the first record comes from pruning
            holes.append(range(expected, raw.seq))
        records, expected = records + 1, raw.seq + 1
        if raw.subject.startswith(_DELIBERATION_PREFIXES):
            task_key = TaskKey(raw.subject.rpartition(".")[2])
            span = spans.setdefault(task_key, _Span(raw.seq, raw.seq))
            span.last, span.ended = raw.seq, span.ended or raw.subject.startswith(_END_PREFIX)
    if expected <= state.last_seq and state.messages:
        holes.append(range(expected, state.last_seq + 1))
    removed = await store.removed_seqs(EVENTS.name) if holes else frozenset()
    lost_seqs = [seq for hole in holes for seq in hole if seq not in removed]
    cut_seqs = range(state.last_seq + 1, expected_last + 1)
    missing = (*lost_seqs, *cut_seqs[:_MAX_LISTED])[:_MAX_LISTED]
    concerned = {
        task_key: seqs
        for task_key, span in spans.items()
        if (seqs := tuple(seq for seq in missing if span.may_lack(seq)))
    }
    return LogReport(records, state.last_seq, expected_last, len(lost_seqs), missing, concerned)
