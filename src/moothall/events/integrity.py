"""Checks whether the log has lost something: a bus silently skips what it can no longer read.

A record whose checksum is wrong shows as a gap in the sequence when the log is read. What was
removed on purpose is a gap too, but the bus knows of it. An end that was cut off shows by
comparison with the last seq that was seen before, which is stored outside the bus.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.domain.topic import Channel
from moothall.events.raw_store import RawStore
from moothall.events.registry import EVENTS, subject

_MAX_LISTED = 1000  # holes that are told one by one
_END_PREFIX = subject(Channel.RESPONSES.all).removesuffix("*")
_DELIBERATION_PREFIXES = (_END_PREFIX, subject(Channel.RESULTS.all).removesuffix("*"))


@dataclass(slots=True)
class _Span:
    """Where a deliberation's records are; `ended` is whether its end was found."""

    first: int
    last: int
    ended: bool = False

    def may_lack(self, seq: int) -> bool:
        """Whether a record that is missing at `seq` may belong to the deliberation."""
        return self.first < seq and (seq < self.last or not self.ended)


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log lacks. `missing` are the first of the `lost` seqs; `before` is where the log ended
    when it was last checked, `last` where it ends now. `concerned` are the deliberations to which a
    missing record may belong, with the seqs in question.
    """

    records: int
    last: int
    before: int
    lost: int
    missing: tuple[int, ...]
    concerned: dict[str, tuple[int, ...]]

    @property
    def cut(self) -> int:
        """The number of records that are missing at the end."""
        return max(0, self.before - self.last)

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return not (self.lost or self.cut)

    def __str__(self) -> str:
        """Describe in one line what is missing."""
        if self.whole:
            return f"the log is whole: {self.records} records up to seq {self.last}"
        shown = ", ".join(map(str, self.missing[:8])) + (
            ", …" if self.lost > len(self.missing[:8]) else ""
        )
        parts = [f"{self.lost} cannot be read any more (seq {shown})"] if self.lost else []
        parts += (
            [f"it ends at seq {self.last} and ended at {self.before} before"] if self.cut else []
        )
        return (
            f"the log is NOT whole: {'; '.join(parts)}; {len(self.concerned)} deliberations may "
            "lack something. Its files were changed or its disk is failing: stop, and bring a copy "
            "of the data directory back"
        )


async def check_log(store: RawStore, before: int = 0) -> LogReport:
    """Read the whole log and report what is missing; `before` is the last seq that was seen
    earlier.
    """
    state = await store.state(EVENTS.name)
    spans: dict[str, _Span] = {}
    holes: list[range] = []
    records, expected = 0, max(state.first_seq, 1)
    async for raw in store.raw(EVENTS.name):
        if raw.seq > state.last_seq:
            break
        if raw.seq > expected and records:  # a gap before the first record was pruned meanwhile
            holes.append(range(expected, raw.seq))
        records, expected = records + 1, raw.seq + 1
        if raw.subject.startswith(_DELIBERATION_PREFIXES):
            span = spans.setdefault(raw.subject.rpartition(".")[2], _Span(raw.seq, raw.seq))
            span.last, span.ended = raw.seq, span.ended or raw.subject.startswith(_END_PREFIX)
    if expected <= state.last_seq and state.messages:
        holes.append(range(expected, state.last_seq + 1))
    removed = await store.removed_seqs(EVENTS.name) if holes else frozenset()
    lost = [seq for hole in holes for seq in hole if seq not in removed]
    cut = range(state.last_seq + 1, before + 1)
    missing = (*lost, *cut[:_MAX_LISTED])[:_MAX_LISTED]
    concerned = {
        name: seqs
        for name, span in spans.items()
        if (seqs := tuple(seq for seq in missing if span.may_lack(seq)))
    }
    return LogReport(records, state.last_seq, before, len(lost), missing, concerned)
