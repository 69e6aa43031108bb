from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.events.raw_store import NO_HEADERS, Raw, StreamState, check_log
from moothall.testing.bus import MemoryBus


class Records(MemoryBus):
    """A stream that reports its number of messages, some of which cannot be read."""

    def __init__(
        self,
        subjects: Sequence[str],
        missing: set[int],
        first: int = 1,
        removed: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._subjects, self._missing, self._from, self._removed = subjects, missing, first, removed

    async def state(self, stream: str) -> StreamState:
        assert stream == "EVENTS"
        return StreamState(len(self._subjects), 1, self._from, self._from + len(self._subjects) - 1)

    async def removed_seqs(self, stream: str) -> frozenset[int]:
        del stream
        return frozenset(self._removed)

    async def raw(
        self, stream: str, after_seq: int = 0, subjects: Sequence[str] = ()
    ) -> AsyncIterator[Raw]:
        assert not after_seq
        for seq, name in enumerate(self._subjects, self._from):
            if seq not in self._missing:
                yield Raw(seq, name, NO_HEADERS, b"{}", datetime.now(UTC))


LOG = (
    "agent.results.a",
    "agent.results.b",
    "agent.results.a",
    "agent.responses.a",
    "agent.results.b",
    "tool.results.w",
)


async def test_a_complete_log_is_reported_as_complete() -> None:
    report = await check_log(Records(LOG, set()), expected_last=6)
    assert report.is_complete
    assert "6 records" in str(report)


@pytest.mark.parametrize(
    ("missing", "concerned"),
    [
        ({3}, {"a": (3,), "b": (3,)}),
        ({5}, {"b": (5,)}),
        ({6}, {"b": (6,)}),
        ({2, 3}, {"a": (2, 3)}),
    ],
)
async def test_a_gap_is_reported_with_the_affected_tasks(
    missing: set[int], concerned: dict[str, tuple[int, ...]]
) -> None:
    report = await check_log(Records(LOG, missing))
    assert not report.is_complete
    assert (report.missing, report.concerned) == (tuple(sorted(missing)), concerned)
    assert "NOT complete" in str(report)


async def test_a_truncated_log_is_detected_by_the_expected_last_record() -> None:
    report = await check_log(Records(LOG[:4], set()), expected_last=6)
    assert (report.is_complete, report.cut, report.lost) == (False, 2, 0)
    assert report.concerned == {"b": (5, 6)}


async def test_pruned_records_are_not_missing() -> None:
    assert (await check_log(Records(LOG, set(), first=1000), expected_last=1005)).is_complete
    assert (await check_log(Records((), set(), first=7), expected_last=6)).is_complete


async def test_deliberately_removed_records_are_not_missing() -> None:
    """Removed like all messages of a deliberation by `moothall rm`."""
    assert (await check_log(Records(LOG, {2, 5}, removed=(2, 5)), expected_last=6)).is_complete
    assert (await check_log(Records(LOG, {2, 5}, removed=(2,)))).missing == (5,)


@given(st.sets(st.integers(2, 40)))
async def test_every_gap_after_the_first_record_is_found(missing: set[int]) -> None:
    report = await check_log(Records(["agent.results.a"] * 40, missing))
    assert set(report.missing) == missing
    assert report.lost == len(missing)
