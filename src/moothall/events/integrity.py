"""Detects lost records of the log: a bus silently skips records that it can no longer read.

A record with a wrong checksum shows as a gap in the sequence when the log is read. A record that
was removed on purpose leaves a gap too, but the bus knows about it. A truncated end is detected by
comparison with the last seq of the previous check, which is stored outside the bus.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.domain.ids import TaskKey
from moothall.domain.topic import Channel
from moothall.events.raw_store import RawStore
from moothall.events.registry import EVENTS, subject

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
        """Whether a record missing at `seq` may belong to the deliberation."""
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
        listed = ", ".join(map(str, self.missing[:8])) + (
            ", …" if self.lost > len(self.missing[:8]) else ""
        )
        parts = [f"{self.lost} can no longer be read (seq {listed})"] if self.lost else []
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
    lost = [seq for hole in holes for seq in hole if seq not in removed]
    cut = range(state.last_seq + 1, expected_last + 1)
    missing = (*lost, *cut[:_MAX_LISTED])[:_MAX_LISTED]
    concerned = {
        task_key: seqs
        for task_key, span in spans.items()
        if (seqs := tuple(seq for seq in missing if span.may_lack(seq)))
    }
    return LogReport(records, state.last_seq, expected_last, len(lost), missing, concerned)
